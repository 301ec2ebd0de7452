"""``specbench score`` on the folder of a run: no models, the same numbers, one-line errors."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.experiment import rescore
from specbench.metrics.sandbox.launch import layers

Cli = Callable[..., Any]
TABLES = ("samples.csv", "summary.csv", "summary.md", "config.json", "samples.jsonl")


@pytest.fixture
def finished(cli: Cli, engine: Any, tmp_path: Path) -> Path:
    """A run of two methods on two tasks, with answers that say 7."""
    line = ("run", "-m", "autoregressive,sd", "-t", "mini-math,mini-news", "--limit", "3")
    assert cli(*line, "--output", "r").code == 0
    return tmp_path / "r"


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TABLES}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_scoring_reproduces_the_numbers_of_the_run(cli: Cli, finished: Path) -> None:
    before = contents(finished)
    shown = cli("score", "r")
    assert shown.code == 0
    assert shown.err == ""
    for text in ("mini-math on mini", "accuracy  accepted /", "[95 %]", "60.0%", "results: r"):
        assert text in shown.out
    after = contents(finished)
    assert {n: after[n] for n in TABLES[:-1]} == {n: before[n] for n in TABLES[:-1]}
    assert [json.loads(line) for line in after["samples.jsonl"].splitlines()] == [
        json.loads(line) for line in before["samples.jsonl"].splitlines()
    ]


def test_an_edited_text_changes_the_quality(cli: Cli, finished: Path) -> None:
    examples = [json.loads(line) for line in (finished / "examples.jsonl").open()]
    right = {e["id"]: e["reference"] for e in examples if e["task"] == "mini-math"}
    records = [json.loads(line) for line in (finished / "samples.jsonl").open()]
    for record in records:
        if record["task"] == "mini-math":
            record["text"] = right[record["sample_id"]]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (finished / "samples.jsonl").write_text(lines)
    shown = cli("score", "r", "--metric", "rougeL, accuracy-flexible")
    assert shown.code == 0
    assert shown.err.startswith("note: `accuracy-flexible` is left out on mini-news")
    assert shown.err.count("\n") == 1
    for text in ("mini-math: further metrics", "mini-news: further metrics", "ROUGE-L"):
        assert text in shown.out
    maths = [row for row in rows(finished / "samples.csv") if row["task"] == "mini-math"]
    assert {(r["quality"], r["rougeL"], r["accuracy-flexible"]) for r in maths} == {("1.0",) * 3}
    found = {(r["task"], r["metric"]) for r in rows(finished / "summary.csv")}
    assert ("mini-news", "rougeL") in found
    assert ("mini-news", "accuracy-flexible") not in found
    # What could not be measured is not asked for again.
    again = cli("score", "r")
    assert (again.code, again.err) == (0, "")


def test_programs_wait_for_leave(cli: Cli, engine: Any, tmp_path: Path) -> None:
    models = ("--target", "a/big", "--draft", "a/small")
    line = ("run", "-m", "sd", "-t", "mini-code", "--limit", "2", "--output", "r", *models)
    assert cli(*line).code == 0
    assert {row["quality"] for row in rows(tmp_path / "r" / "samples.csv")} == {""}
    waiting = cli("score", "r")
    assert waiting.code == 0
    assert waiting.err == (
        "note: the programs of 2 samples were not run and have no score: "
        "give --allow-code-execution to run them\n"
    )
    environment = tmp_path / "r" / "environment.json"
    before = json.loads(environment.read_text())
    assert before["sandbox"] == []
    allowed = cli("score", "r", "--allow-code-execution")
    assert (allowed.code, allowed.err) == (0, "")
    assert json.loads(environment.read_text()) == before | {"sandbox": list(layers())}
    assert layers()
    assert {row["quality"] for row in rows(tmp_path / "r" / "samples.csv")} == {"0.0"}
    # What was measured once does not get lost.
    assert cli("score", "r").err == ""
    assert {row["quality"] for row in rows(tmp_path / "r" / "samples.csv")} == {"0.0"}


def test_an_interruption_leaves_the_files(
    cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(finished)

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rescore, "score_text", stop)
        stopped = cli("score", "r", "--metric", "rouge1")
    assert stopped.code == 130
    assert stopped.err == "error: interrupted: score r again to have it whole\n"
    assert contents(finished) == before
    assert cli("score", "r", "--metric", "rouge1").code == 0
    assert contents(finished) != before


def test_a_wrong_request_is_one_line(cli: Cli, finished: Path) -> None:
    (finished / "examples.jsonl").rename(finished / "away")
    for line, complaint in (
        (("score", "nothing"), "nothing is no run"),
        (("score", "r"), "r holds no examples.jsonl"),
        (("score", "r", "--metric", "beauty"), "unknown metric `beauty`"),
    ):
        result = cli(*line)
        assert result.code == 2
        assert result.err.startswith(f"error: {complaint}")
        assert result.err.count("\n") == 1


def test_scoring_loads_no_models(cli: Cli, finished: Path) -> None:
    program = (
        "import sys\n"
        "from specbench.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "sys.exit(' '.join({'torch', 'transformers', 'datasets'} & set(sys.modules)) or 0)\n"
    )
    line = [sys.executable, "-c", program, "score", str(finished)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
