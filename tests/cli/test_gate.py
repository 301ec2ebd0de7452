"""What a pipeline may require of a run: exit code 0, or 1 and a sentence with the reasons."""

import json
from pathlib import Path
from typing import Any

import pytest

from ..serving.fake import Fake, Handler, arms, solved
from .made import Values, write_run

SERVED = ("run", "--prompts", "asked.jsonl", "--metric", "accuracy", "--no-progress", "-o", "run")
WITHIN = ("--against", "plain", "--margin", "40", "--require", "within")


@pytest.fixture
def made(tmp_path) -> Path:
    return write_run(tmp_path / "made")


def planned(run: Path, tasks: Values, state: str = "complete") -> None:
    """Say which methods a run was to have on each task, and how it ended."""
    cells = {
        task: [{"method": m, "draft_length": 3} for m in names] for task, names in tasks.items()
    }
    progress = {"state": state, "samples": 200, "failed": 0}
    content: Values = {"samples_planned": 210, "progress": progress}
    content["tasks"] = [{"name": task, "cells": of_task} for task, of_task in cells.items()]
    (run / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--against sd --margin 90 --require within -m diversed,static --draft-length 3", ""),
        ("--against sd --margin 90 --require within --draft-length 3", ""),
        (
            "--against sd --margin 2 --require within -m static --draft-length 3",
            "within 2 points of sd: static w=0 on mini-math (lossy: -",
        ),
        (
            "--against sd --margin 1 --require within -m diversed --draft-length 5",
            "within 1 point of sd: diversed on mini-math (open: ",
        ),
        ("--require-acceptance 40", ""),
        (
            "--require-acceptance 41",
            "accept 41 % of drafts: sd, N = 3 on mini-math (40.0 %), sd, N = 5 on mini-math (40.0 ",
        ),
        ("--require-acceptance 80 -m diversed", ""),
        ("--require-acceptance 80.5 -m diversed --draft-length 5", "diversed on mini-math (80.0 %"),
        ("--against sd --margin 90 --require-acceptance 80 --draft-length 3", ""),
        ("--against sd --margin 2 --require-acceptance 81 --draft-length 3", "diversed on mini-"),
        ("--require-acceptance 10 -m autoregressive", ": no method tells its acceptance"),
    ],
)
@pytest.mark.parametrize("form", ["--format csv", "--json"])
def test_a_gate_ends_with_1_and_one_sentence(cli, made, options, reason, form):
    line = f"compare {made} {options} {form}".split()
    done = cli(*line)
    assert done.code == (1 if reason else 0), done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == bool(reason) and reason in "".join(errors)
    named = ("--require", "within", "--require-acceptance")
    open_line = [w for i, w in enumerate(line) if w not in named and line[i - 1] != named[2]]
    ungated = cli(*open_line)
    if not ungated.code:
        assert (ungated.out, ungated.err) == (done.out, done.err.partition("error: ")[0])
    if form == "--json":
        json.loads(done.out)


GATES = ("--against sd --margin 90 --require within", "--require-acceptance 20")
METHODS = ["autoregressive", "sd", "static", "diversed"]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("tasks", "state", "options", "reason"),
    [
        ({"mini-math": METHODS}, "complete", "", ""),
        ({"mini-math": METHODS}, "interrupted", "", "made (incomplete: interrupted, 200 of 210 "),
        ({"mini-math": METHODS}, "failed", "-t mini-math", "made (incomplete: failed, 200 of 210 "),
        ({"mini-math": [*METHODS, "lossy"]}, "complete", "", "lossy on mini-math (missing)"),
        ({"mini-math": [*METHODS, "lossy"]}, "complete", "-m diversed", ""),
        ({"mini-math": METHODS, "mini-code": METHODS}, "complete", "", "sd on mini-code (missing)"),
        ({"mini-math": METHODS, "mini-code": METHODS}, "complete", "-t mini-math", ""),
    ],
)
def test_what_is_missing_is_not_shown(cli, made, tasks, state, options, reason, gate):
    planned(made, tasks, state)
    done = cli("compare", made.name, *f"{gate} --draft-length 3 {options}".split())
    assert done.code == (1 if reason else 0), done.err
    assert reason in done.err and done.err.count("error: not shown to ") == bool(reason)


def test_a_method_or_baseline_without_any_answer_ends_with_1(cli, made):
    """A run that is stopped early has no method to compare, or none to compare with."""
    planned(made, {"mini-math": [*METHODS, "lossy"]}, "interrupted")
    for options in ("--against lossy", "--against sd -m lossy"):
        line = f"compare made {options} --margin 2"
        assert cli(*line.split()).code == 2
        done = cli(*line.split(), "--require", "within")
        assert done.code == 1 and "lossy on mini-math (missing)" in done.err
    assert cli(*["compare", "made", "--against", "ds", "--margin", "2"]).code == 2


def drafting(accepted: int, proposed: int = 10) -> Any:
    timings = {"draft_n": proposed, "draft_n_accepted": accepted}
    return lambda words: {"timings": {"predicted_n": words, **timings}}


def wrong(prompt: str) -> list[str]:
    return ["so"]


def silent(handler: Handler, body: dict[str, Any]) -> bool:
    """Refuse every second prompt."""
    if body["max_tokens"] <= 16 or sum(map(ord, str(body["messages"]))) % 2:
        return False
    handler.reply(400, {"error": "no"})
    return True


@pytest.mark.parametrize(
    ("fast", "options", "reason"),
    [
        (Fake(solved, report=drafting(7)), [*WITHIN, "--require-acceptance", "60"], ""),
        (Fake(solved, report=drafting(7)), ["--require-acceptance", "70"], ""),
        (
            Fake(solved, report=drafting(5)),
            ["--require-acceptance", "60"],
            "fast concurrency=1 on asked (50",
        ),
        (Fake(solved), ["--require-acceptance", "60"], ": no method tells its acceptance"),
        (Fake(solved), [*WITHIN, "--require-acceptance", "60"], "fast concurrency=1 on asked (its"),
        (Fake(solved, report=drafting(0, 0)), ["--require-acceptance", "1"], ": no method tells"),
        (Fake(wrong, report=drafting(7)), WITHIN, "of plain: fast on asked (lossy: -100.0 "),
        (Fake(solved, fault=silent), WITHIN, "points, 20 answers are missing)"),
    ],
)
def test_a_pipeline_notices_when_an_engine_gets_worse(cli, fast, options, reason):
    asked = [{"prompt": f"Say {i}.", "reference": str(i)} for i in range(40)]
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    with arms(plain=Fake(solved), fast=fast) as servers:
        again = ("--server", servers[1].replace("plain", "again"))
        cli(*SERVED, *servers, *again)
    done = cli("compare", "run", *options)
    assert done.code == (1 if reason else 0), done.err
    assert reason in done.err and done.err.count("error: ") == bool(reason)
