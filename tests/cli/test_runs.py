"""``specbench score``, ``trace`` and ``report`` on finished runs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.experiment import rescore
from specbench.tasks.metrics.sandbox.launch import layers

from ..synthetic import records, rows
from .conftest import imported

TABLES = ("samples.csv", "summary.csv", "summary.md", "config.json", "samples.jsonl")


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "r"))


REMARKED = {"quality cannot be judged: all answers were cut at 12 tokens; raise --max-new-tokens"}


def remarked(line: str) -> str:
    return line.split(": ", 2)[2]


def test_scoring_again_changes_nothing_and_added_metrics_are_measured_where_they_apply(cli, run):
    before = {name: (run / name).read_bytes() for name in TABLES[:-1]}, records(run)
    shown = cli("score", "r", "--no-progress")
    assert shown.code == 0 and not set(map(remarked, shown.err.splitlines())) - REMARKED
    for text in ("mini-math on mini", "accuracy", "accepted /", "results: r"):
        assert text in shown.out
    assert ({name: (run / name).read_bytes() for name in TABLES[:-1]}, records(run)) == before
    shown = cli("score", "r", "--metric", "rougeL, accuracy-flexible", code=0)
    assert shown.err.startswith("note: `accuracy-flexible` is skipped on mini-headline")
    assert set(map(remarked, shown.err.splitlines()[1:])) == REMARKED
    assert "Texts, mini-math" in shown.out and "ROUGE-L" in shown.out
    maths = [row for row in rows(run) if row["task"] == "mini-math"]
    assert "" not in {row[name] for row in maths for name in ("rougeL", "accuracy-flexible")}
    again = cli("score", "r")  # the skipped metric is not added
    assert again.code == 0 and set(map(remarked, again.err.splitlines())) == REMARKED


def test_code_is_scored_after_permission(cli, engine, tmp_path):
    models = ("--target", "a/big", "--draft", "a/small")
    line = ("run", "-m", "sd", "-t", "mini-code", "--limit", "2", "--output", "r", *models)
    assert cli(*line).code == 0
    folder = tmp_path / "r"
    assert {row["quality"] for row in rows(folder)} == {""}
    waiting = cli("score", "r", code=0)
    assert "the code of 4 samples" in waiting.err and "--allow-code-execution" in waiting.err
    before = json.loads((folder / "environment.json").read_text())
    assert before["sandbox"] == []
    allowed = cli("score", "r", "--allow-code-execution")
    no_template = "note: mini-code: prompts are plain text, since the target has no chat template\n"
    assert (allowed.code, allowed.err) == (0, no_template)
    after = json.loads((folder / "environment.json").read_text())
    assert after == before | {"sandbox": list(layers())} and layers()
    assert {row["quality"] for row in rows(folder)} == {"0.0"}
    # Existing scores are kept.
    assert cli("score", "r").err == no_template
    assert {row["quality"] for row in rows(folder)} == {"0.0"}


def test_an_interruption_leaves_the_files_and_scoring_loads_no_models(cli, run, monkeypatch):
    before = {name: (run / name).read_bytes() for name in TABLES}

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(rescore, "score_text", stop)
    stopped = cli("score", "r", "--metric", "rouge1")
    assert (stopped.code, stopped.err.count("\n")) == (130, 1)
    assert "score r again" in stopped.err
    assert {name: (run / name).read_bytes() for name in TABLES} == before
    assert not {"torch", "transformers", "datasets"} & imported(f"score {run}")


def sample(run: str, method: str) -> dict[str, Any]:
    samples = (r for r in records(Path(run)) if (r["task"], r["method"]) == ("mini-math", method))
    return next(r for r in samples if r["draft_length"] in (0, 3) and r["sample_id"] == "test-0")


def line_of(run: str, method: str) -> tuple[str, ...]:
    label = method if method == "autoregressive" else f"{method} N=3"
    return ("trace", run, "--sample", "test-0", "-t", "mini-math", "-m", label)


@pytest.mark.parametrize("method", ["autoregressive", "sd", "diversed"])
def test_a_trace_is_the_text_of_its_sample(cli, finished, method):
    head, prompt, body = cli(*line_of(finished, method), code=0).out.split("\n\n", 2)
    assert prompt.startswith("prompt: Question: ")
    made = sample(finished, method)
    assert head.startswith(f"mini-math, test-0: {method}")
    emitted = re.sub(r"\[-.*?-\]", "", body).replace("↵", "")
    assert re.sub(r"\{[~+]|[~+]\}", "", emitted).replace("⟨end⟩", "") == made["text"] + "\n"
    rejected = sum(token is not None for token in made["per_round"]["rejected"])
    assert (body.count("[-"), body.count("{+")) == (rejected, rejected)
    assert f"{made['output_tokens']} tokens in {made['rounds']} rounds" in head


def test_the_most_mismatches_are_traced_by_default_and_a_picture_has_every_token(cli, finished):
    def mismatches(record):
        return [flag for flags in record["per_round"]["agreed"] for flag in flags].count(False)

    static = [r for r in records(Path(finished)) if r["method"] == "static"]
    shown = cli("trace", finished, "-m", "static", code=0)
    most = max(map(mismatches, static))
    assert most > min(map(mismatches, static))
    assert f"{most} of them mismatches" in shown.out
    assert shown.out.count("{~") == most + 1  # one more in the legend
    written = cli(*line_of(finished, "diversed"), "-o", "trace.svg")
    assert (written.code, written.out) == (0, "trace.svg\n")
    picture = Path("trace.svg").read_text()
    rejected = sample(finished, "diversed")["per_round"]["rejected"]
    struck = re.findall(r"\.(\S+) .*line-through", picture)
    pieces = sum(picture.count(f'<text class="{name}"') for name in struck)
    assert pieces == sum(token is not None for token in rejected) + 1  # one more in the legend


@pytest.mark.usefixtures("report_without_figures")
def test_the_report_of_the_newest_run_is_in_its_folder(cli, finished, tmp_path):
    folder = tmp_path / "results" / "mine"
    shutil.copytree(finished, folder)
    done = cli("report", "-t", "mini-math", "-m", "sd")
    assert (done.code, done.out) == (0, "results/mine/report.html\n"), done.err
    page = (folder / "report.html").read_text()
    assert "mini-math on mini, T = 1" in page
    assert "DIVERSED" not in page
