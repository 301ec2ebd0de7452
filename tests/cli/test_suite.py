from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.runs.frames import read_samples

SUITE = """
about = "two tasks"
[[entry]]
name = "a"
pairs = ["mini"]
tasks = ["mini-math", "mini-code"]
methods = ["autoregressive", "sd"]
limit = 2
[assumed_tokens_per_second]
mini = 100
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "s.toml").write_text(SUITE)
    return "s.toml"


def test_a_dry_run_prints_runs_cells_samples_and_where_its_hours_come_from(
    cli: Any, file: str
) -> None:
    found = cli("suite", file, "--dry-run", "--workers", "4")
    assert found.code == 0
    assert "a-mini-mini-math-T1-seed0" in found.out
    assert "2 runs, 8 samples" in found.out and "with 4" in found.out
    assert "mini: 100 tokens/s per worker, assumed in the file" in found.out
    assert not Path("results").exists()


def test_unknown_hours_are_reported_as_unknown(cli: Any, file: str) -> None:
    Path(file).write_text(SUITE.partition("[assumed")[0])
    found = cli("suite", file, "--dry-run")
    assert found.code == 0
    assert "hours unknown" in found.out and "assumed_tokens_per_second" in found.out


def test_a_suite_is_measured_run_by_run_and_its_folder_read_as_one(
    cli: Any, engine: Any, file: str
) -> None:
    engine.forget = lambda: None
    first = cli("suite", file, "--output", "out", "--shard", "2/2", "--no-progress")
    assert first.code == 0, first.err
    assert [path.name for path in Path("out").iterdir()] == ["a-mini-mini-code-T1-seed0"]
    both = cli("suite", file, "--output", "out", "--no-progress")
    assert "2 of 2, a-mini-mini-code-T1-seed0: already done" in both.out
    assert len(read_samples("out")) == 8
    assert set(specbench.load("out").runs["state"]) == {"complete"}
    measured = cli("suite", file, "--output", "out", "--dry-run")
    assert "tokens/s per worker, measured in this folder" in measured.out


def test_a_failed_run_does_not_stop_the_others(cli: Any, engine: Any, file: str) -> None:
    engine.forget = lambda: None
    engine.failing = {0: ValueError("broken")}
    found = cli("suite", file, "--output", "out", "--no-progress")
    assert found.code == 1
    assert "1 of 2 runs are incomplete, the first a-mini-mini-math-T1-seed0: " in found.err
    assert "2 of 2, a-mini-mini-code-T1-seed0: 4 samples, 0 failed" in found.out
    assert cli("suite", file, "--output", "out", "--no-progress").code == 0
