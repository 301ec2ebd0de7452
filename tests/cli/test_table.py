"""``specbench table`` on finished runs: its formats, and the paper's numbers beside one's own."""

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.frames import SAMPLES, SUMMARY
from specbench.analysis.published import published
from specbench.cli import output
from specbench.methods.registry import AUTOREGRESSIVE

Cli = Callable[..., Any]
PARAMETERS: dict[str, dict[str, Any]] = {
    "lossy": {"lenience": 0.5},
    "speccascade": {"rule": "token-v3", "alpha": 0.5},
    "static": {"weight": 0.6},
    "diversed": {"head": "results"},
}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A run of llama that measured just what the paper did, but for 2 more of quality."""
    theirs = published()
    theirs = theirs[(theirs["source"] == "table1") & (theirs["pair"] == "llama")]
    rows, answers = [], []
    for row in theirs.to_dict("records"):
        drafted = row["method"] != AUTOREGRESSIVE
        cell = {
            **{name: row[name] for name in ("pair", "task", "method", "temperature")},
            **{"run_id": "mine", "engine": "eager", "batch_size": 1, "n": 100},
            **{"draft_length": 5 * drafted, **PARAMETERS.get(row["method"], {})},
        }
        answers += _answers(row, cell)
        for metric, value, unit in (
            ("draft_acceptance_rate", row["acceptance_rate_pct"] / 100, "fraction"),
            ("quality", (row["quality"] + 2) / 100, row["metric"]),
            ("speedup", 1 + drafted, "x"),
        ):
            interval = {"ci_low": 0.99 * value, "ci_high": 1.01 * value}
            rows.append({**cell, "metric": metric, "value": value, **interval, "unit": unit})
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    samples = pd.DataFrame(answers)
    samples.reindex(columns=list(SAMPLES)).to_csv(folder / "samples.csv", index=False)
    table = pd.DataFrame(rows).reindex(columns=list(SUMMARY))
    table.to_csv(folder / "summary.csv", index=False)
    return folder


def _answers(row: dict[Any, Any], cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A hundred samples with a row's quality and acceptance; a prompt is as easy for all."""
    counts = {"seed": 0, "repeat": 0, "prompt_tokens": 9, "output_tokens": 9, "rounds": 9}
    times = ("prefill", "decode", "draft", "verify", "accept", "latency")
    spent = {f"{name}_seconds": 1 + (cell["draft_length"] == 0) for name in times}
    drafts = {"proposed": 100, "accepted": row["acceptance_rate_pct"], "tokens_per_second": 9}
    same = {**cell, **counts, **spent, **drafts, "quality_metric": row["metric"]}
    for i in range(100):
        quality = float(i < round(row["quality"] + 2))
        yield {**same, "sample_id": f"{i}", "quality": quality, "stopped_by": "eos"}


def test_text_goes_to_a_page_or_a_terminal(
    cli: Cli, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = cli("table", "runs/mine")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("Pair llama, T = 1, N = 5, 100 prompts per task\n")
    assert "\x1b" not in shown.out
    assert "acc. / drafted: accepted" in shown.out
    diversed = next(line for line in shown.out.splitlines() if line.startswith("diversed"))
    assert diversed.split()[1:4] == ["72.6*", "69.0*", "2.00*"]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(output.sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    cli("table", "runs/mine")
    assert "\x1b[1m72.6*\x1b[0m" in screen.getvalue()
    plain = screen.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(map(len, plain.splitlines())) <= 100


def test_the_paper_stands_beside_ones_own(cli: Cli, llama: Path) -> None:
    shown = cli("table", "runs/mine", "--against", "paper", "--format", "csv")
    assert (shown.code, shown.err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert len(rows) == 4 * 6 * 3
    differences = {"quality": "2.00", "draft_acceptance_rate": "0.00"}
    for row in rows:
        if row["published"]:
            assert f"{float(row['difference']):z.2f}" == differences[row["figure"]]
        else:
            assert row["figure"] == "speedup" or not row["value"]
    text = cli("table", "runs/mine", "--against", "paper").out
    lossy = next(line for line in text.splitlines() if line.startswith("lossy"))
    assert lossy.split()[2:9] == ["59.8", "59.8", "0.0", "68.0*", "66.0", "+2.0", "2.00*"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(cli: Cli, llama: Path, tmp_path: Path) -> None:
    line = ("table", "runs/mine", "--format", "latex", "--intervals", "--against", "paper")
    table = cli(*line).out
    document = (
        "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n"
        f"\\begin{{document}}\n{table}\\end{{document}}\n"
    )
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    line = ("pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_folder_of_runs_and_the_newest_run(cli: Cli, llama: Path, tmp_path: Path) -> None:
    for name, sign in (("latex", r"\toprule"), ("markdown", "|---|--:|")):
        shown = cli("table", "runs/mine", "--format", name, "--intervals")
        assert (shown.code, shown.err, sign in shown.out) == (0, "", True)
        assert "[68.3, 69.7]" in shown.out
    both = cli("table", "runs")
    assert both.out == cli("table", "runs/mine").out
    shutil.copytree(llama, tmp_path / "results" / "mine")
    (tmp_path / "results" / "mine" / "samples.csv").touch()
    assert cli("table").out == both.out


def test_what_a_reader_should_know_of_a_run(cli: Cli, llama: Path) -> None:
    config: dict[str, Any] = {
        "samples_planned": 9,
        "tasks": [],
        "progress": {"state": "interrupted", "samples": 3},
        "loading": {"load_format": "dummy"},
    }
    (llama / "config.json").write_text(json.dumps(config))
    assert cli("table", "runs/mine").err.count("note: ") == 1
    said = cli("table", "runs/mine", "--against", "paper").err
    assert "is not a whole run: interrupted, 3 of 9 samples" in said
    assert "has random weights (--load-format dummy): not what the paper measured" in said


@pytest.mark.parametrize("format", ["text", "csv"])
def test_where_the_paper_has_nothing_one_line_says_so(cli: Cli, llama: Path, format: str) -> None:
    table = (llama / "summary.csv").read_text().replace("llama", "mine")
    (llama / "summary.csv").write_text(table)
    shown = cli("table", "runs/mine", "--against", "paper", "--format", format)
    assert shown.code == 0
    said = shown.err if format == "csv" else shown.out
    assert said.count("The paper has no numbers for this: its pairs are llama, qwen3, gemma3") == 1
    assert (shown.err == "") == (format == "text")


def test_refusals(cli: Cli) -> None:
    for line, message in (
        ("--format html", "--format"),
        ("--against us", "--against"),
        ("nowhere", "There is no folder"),
    ):
        result = cli("table", *line.split())
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert message in result.err
