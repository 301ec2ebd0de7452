"""``specbench report``: where it writes, what it notes and what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The tables of a run of before there were traces, under results/."""
    folder = tmp_path / "results" / "old"
    folder.mkdir(parents=True)
    for name in ("config.json", "environment.json", "summary.csv"):
        shutil.copy(REFERENCE / name, folder)
    (folder / "samples.csv").write_text("")  # makes it the newest run
    return folder


def test_the_newest_run_s_report_lies_in_its_folder(cli: Cli, old: Path) -> None:
    done = cli("report")
    assert done.code == 0, done.err
    assert done.out == "results/old/report.html\n"
    assert "note: no traces of old: " in done.err
    page = (old / "report.html").read_text()
    assert "mini-code on mini, T = 1, 500 prompts" in page
    assert "sweep-weights --method paper" in page


def test_several_runs_in_a_file_of_one_s_own(cli: Cli, old: Path) -> None:
    other = old.with_name("other")
    shutil.copytree(old, other)
    table = other / "summary.csv"
    table.write_text(table.read_text().replace("reference,", "other,"))
    config = json.loads((other / "config.json").read_text())
    config["progress"]["state"] = "interrupted"
    (other / "config.json").write_text(json.dumps(config))
    done = cli("report", "results/old", "results/other", "--output", "both.html")
    assert (done.code, done.out) == (0, "both.html\n")
    assert "note: other is incomplete: interrupted" in done.err
    assert "<title>specbench: old, other</title>" in Path("both.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code"), [(("nowhere",), 2), (("results/old", "-o", "nowhere/r.html"), 2)]
)
def test_refusals(cli: Cli, old: Path, arguments: tuple[str, ...], code: int) -> None:
    refused = cli("report", *arguments)
    assert (refused.code, refused.out) == (code, "")
    assert "nowhere" in refused.err
    assert not (old / "report.html").exists()
