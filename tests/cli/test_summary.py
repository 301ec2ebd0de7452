"""``specbench summary``: many runs as one table."""

import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.frames import read_summary

Cli = Callable[..., Any]
RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("reference", "reference-greedy"):
        (tmp_path / "results" / name).mkdir(parents=True)
        for file in ("summary.csv", "samples.csv", "config.json", "environment.json"):
            shutil.copy(RESULTS / name / file, tmp_path / "results" / name)
    return tmp_path / "results"


def test_the_figures_of_all_runs_of_a_folder_are_printed(cli: Cli, runs: Path) -> None:
    result = cli("summary", str(runs))
    assert (result.code, result.err) == (0, "")
    printed = pd.read_csv(io.StringIO(result.out))
    expected = read_summary(runs)
    assert list(printed) == list(expected)
    assert list(printed["run_id"].unique()) == ["reference", "reference-greedy"]
    pd.testing.assert_series_equal(printed["value"], expected["value"])


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (["-o", "out.csv"], pd.read_csv),
        (["-o", "out.parquet"], pd.read_parquet),
        (["-o", "out.data", "--format", "parquet"], pd.read_parquet),
    ],
)
def test_a_file_has_the_format_asked_for(
    cli: Cli, runs: Path, arguments: list[str], read: Callable[[str], pd.DataFrame]
) -> None:
    result = cli("summary", str(runs / "reference"), *arguments)
    assert (result.code, result.out) == (0, f"{arguments[1]}\n")
    expected = read_summary(runs / "reference")
    pd.testing.assert_frame_equal(read(arguments[1]), expected, check_dtype=False)


@pytest.mark.parametrize(
    ("frame", "rows", "column"),
    [("cells", 59, "speedup_low"), ("samples", 29_500, "sample_id"), ("runs", 2, "commit")],
)
def test_other_frames(cli: Cli, runs: Path, frame: str, rows: int, column: str) -> None:
    assert cli("summary", str(runs), "--frame", frame, "-o", "out.parquet").code == 0
    found = pd.read_parquet("out.parquet")
    assert len(found) == rows
    assert column in found


def test_the_newest_run_is_taken_where_none_is_named(cli: Cli, runs: Path) -> None:
    (runs / "reference" / "samples.csv").touch()
    printed = pd.read_csv(io.StringIO(cli("summary", "--frame", "runs").out))
    assert list(printed["run_id"]) == ["reference"]


def test_a_run_that_is_not_whole_is_named(cli: Cli, runs: Path) -> None:
    config = runs / "reference" / "config.json"
    config.write_text(config.read_text().replace('"complete"', '"interrupted"'))
    result = cli("summary", str(runs), "-o", "out.csv")
    assert result.code == 0
    assert result.err.count("note:") == 1
    assert "reference is not a whole run: interrupted, 24000 of 24000 samples" in result.err


def test_wrong_requests(cli: Cli) -> None:
    for line, message in (
        ("summary --frame cell", "--frame"),
        ("summary --format xlsx", "--format"),
        ("summary --format parquet", "name a file for it with --output"),
        ("summary --output x.xyz", "x.xyz does not say which format: let it end in .csv"),
    ):
        result = cli(*line.split())
        assert (result.code, result.out) == (2, "")
        assert message in result.err


def test_the_benchmark_of_many_runs_works() -> None:
    script = Path(__file__).parents[1] / "benchmarks" / "many_runs.py"
    command = [sys.executable, str(script), "--runs", "9", "--prompts", "3", "summary", "table"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "9 runs" in done.stdout
    assert done.stdout.count("within") == 2
