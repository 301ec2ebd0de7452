"""What a pipeline may require of a run: exit code 0, or 1 and a sentence with the reasons."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.results import Results
from specbench.cli.app import main
from specbench.cli.finished import Rows
from specbench.cli.gate import hold
from specbench.cli.tables import CompareOptions
from specbench.errors import RunError

from ..serving.fake import Fake, Handler, arms, solved
from .made import Values, write_run

METHODS = ["autoregressive", "sd", "static", "diversed"]
WITHIN_90: Values = {"against": "sd", "margin": 90, "require": "within"}
FLOOR_20: Values = {"require_acceptance": 20}


@pytest.fixture
def made(once, tmp_path) -> Path:
    folder = Path(shutil.copytree(once("made", write_run), tmp_path / "made"))
    (folder / "config.json").write_text("{}")
    return folder


def planned(run: Path, tasks: Values, state: str = "complete") -> None:
    """Say which methods a run was to have on each task, and how it ended."""
    cells = {t: [{"method": m, "draft_length": 3} for m in names] for t, names in tasks.items()}
    progress = {"state": state, "samples": 200, "failed": 0}
    content: Values = {"samples_planned": 210, "progress": progress}
    content["tasks"] = [{"name": task, "cells": of_task} for task, of_task in cells.items()]
    (run / "config.json").write_text(json.dumps(content))


def reason_of(run: Path, required: Values, **filters: Any) -> str:
    """Return why the rows of a run do not hold what is required, or nothing."""
    options, rows = CompareOptions(**required), Rows(**filters)
    results = Results([run], rows.selection(), by_folder=True)
    judged = results.against(options.against, options.margin or 0) if options.against else None
    try:
        hold(options, results, [run], rows, judged)
    except RunError as error:
        return str(error)
    return ""


def test_what_is_not_shown_has_a_reason(made, stored):
    diversed = {"method": ["diversed"], "draft_length": [5]}
    cases: list[tuple[Values, Values]] = [
        (WITHIN_90, {"method": ["diversed", "static"], "draft_length": [3]}),
        (WITHIN_90, {"draft_length": [3]}),
        (WITHIN_90 | {"margin": 1}, diversed),
        *(({"require_acceptance": floor}, {}) for floor in (40, 41)),
        ({"require_acceptance": 80}, {"method": ["diversed"]}),
        ({"require_acceptance": 80.5}, diversed),
        ({"require_acceptance": 10}, {"method": ["autoregressive"]}),
    ]
    stored(*(f"{required} {rows}: {reason_of(made, required, **rows)}" for required, rows in cases))


@pytest.mark.parametrize(
    "options",
    ["90 --require-acceptance 80", "2 --require-acceptance 81", "2 --require within -m static"],
)
def test_a_gate_ends_with_1_and_a_sentence_below_what_is_printed_anyway(cli, made, stored, options):
    line = f"compare {made} --draft-length 3 --json --against sd --margin {options}".split()
    done = cli(*line)
    stored(done.code, done.err)
    named = ("--require", "within", "--require-acceptance")
    open_line = [w for i, w in enumerate(line) if w not in named and line[i - 1] != named[2]]
    ungated = cli(*open_line, code=0)
    assert (ungated.out, ungated.err) == (done.out, done.err.partition("error: ")[0])
    json.loads(done.out)


@pytest.mark.parametrize("required", [WITHIN_90, FLOOR_20], ids=["within", "acceptance"])
def test_what_is_missing_is_not_shown(made, required, stored):
    more, both = [*METHODS, "lossy"], {"mini-math": METHODS, "mini-code": METHODS}
    cases: list[tuple[Values, str, Values]] = [
        ({"mini-math": METHODS}, "complete", {}),
        ({"mini-math": METHODS}, "interrupted", {}),
        ({"mini-math": METHODS}, "failed", {"task": ["mini-math"]}),
        ({"mini-math": more}, "complete", {}),
        ({"mini-math": more}, "complete", {"method": ["diversed"]}),
        (both, "complete", {}),
        (both, "complete", {"task": ["mini-math"]}),
        (both | {"mini-news": METHODS}, "complete", {}),
    ]
    reasons = []
    for tasks, state, rows in cases:
        planned(made, tasks, state)
        reason = reason_of(made, required, draft_length=[3], **rows)
        reasons.append(f"{tasks} {state} {rows}: {reason}")
    stored(*reasons)


@pytest.mark.parametrize("content", ["{bad", "[]", "", None])
def test_without_a_readable_configuration_no_gate_holds(made, content):
    """It would say whether the run was interrupted."""
    assert not reason_of(made, {"require_acceptance": 40})
    (made / "config.json").unlink()
    if content is not None:
        (made / "config.json").write_text(content)
    assert "config.json" in reason_of(made, {"require_acceptance": 40})


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


def silent(handler: Handler, body: dict[str, Any]) -> bool:
    """Refuse every second prompt."""
    if body["max_tokens"] <= 16 or sum(map(ord, str(body["messages"]))) % 2:
        return False
    handler.reply(400, {"error": "no"})
    return True


@pytest.fixture(scope="session")
def served(once) -> str:
    """A run of a server and of others of which each is worse in one way; ``again`` is the same."""
    return str(once("served", serve) / "run")


def serve(folder: Path) -> None:
    folder.mkdir()
    asked = [{"prompt": f"Say {i}.", "reference": str(i)} for i in range(40)]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    others = {
        **{"seven": Fake(solved, report=drafting(7)), "five": Fake(solved, report=drafting(5))},
        **{"untold": Fake(solved), "idle": Fake(solved, report=drafting(0, 0))},
        "wrong": Fake(lambda prompt: ["so"], report=drafting(7)),
        "silent": Fake(solved, fault=silent),
    }
    line = ["run", "--prompts", str(folder / "asked.jsonl"), "--metric", "accuracy"]
    with arms(plain=Fake(solved), **others) as servers, pytest.raises(SystemExit):
        again = ["--server", servers[1].replace("plain", "again")]
        main([*line, "--no-progress", "-o", str(folder / "run"), *servers, *again])


WITHIN_40 = "--against plain --margin 40 --require within"


@pytest.mark.parametrize(
    ("arm", "options", "reason"),
    [
        ("seven", f"{WITHIN_40} --require-acceptance 60", ""),
        ("seven", "--require-acceptance 70", ""),
        ("five", "--require-acceptance 60", "five concurrency=1 on asked (50"),
        ("untold", "--require-acceptance 60", ": no method tells its acceptance"),
        ("untold", f"{WITHIN_40} --require-acceptance 60", "untold concurrency=1 on asked (its"),
        ("idle", "--require-acceptance 2", ": no method tells"),
        ("wrong", WITHIN_40, "worse by 82.5 to 100.0: -100.0 ["),
        ("silent", WITHIN_40, "20 missing: 0.0 ["),
    ],
)
def test_a_pipeline_notices_when_an_engine_gets_worse(cli, served, arm, options, reason):
    done = cli("compare", served, "-m", f"plain,again,{arm}", *options.split())
    assert done.code == (1 if reason else 0), done.err
    assert reason in done.err and done.err.count("error: ") == bool(reason)


def test_heads_of_a_recipe_are_judged_by_their_mean(made):
    """One of two heads loses more than the margin, and their mean does not."""
    options = CompareOptions(against="sd", margin=90, require="within")
    results = Results([made], Rows(draft_length=[3]).selection(), by_folder=True)
    judged = results.against("sd", 90)
    fails = judged.assign(loss=judged["loss"].mask(judged["method"] == "diversed", "open"))
    with pytest.raises(RunError, match="diversed"):
        hold(options, results, [made], Rows(draft_length=[3], method=["diversed"]), fails)
    of_recipe = fails.assign(seeds=fails["seeds"].mask(fails["method"] == "diversed", 1))
    hold(options, results, [made], Rows(draft_length=[3], method=["diversed"]), of_recipe)


def test_servers_are_not_called_the_same_without_their_environment(cli, served, tmp_path):
    (shutil.copytree(served, run := tmp_path / "run") / "environment.json").unlink()
    line = ("compare", str(run), *WITHIN_40.split()[:4], "--json")
    assert '"same server"' not in cli(*line, code=0).out
