"""Conversations turn by turn, and the target's own greedy texts, with a fake engine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.experiment.identity import sample_keys
from specbench.experiment.plan import Plan
from specbench.experiment.rescore import open_run, score_run
from specbench.runs.records import ERROR, RECORDS, latest_records
from specbench.tasks.example import Example

from .runs import ByCharacter, executed, plan_of, tables, task_of

TALK = Example("talk", "one", "#### 7", turns=("one", "two", "six"), references=("7", None, "9"))
LONE = Example("lone", "alone", "#### 7", category="math")
ANSWER = "so #### 7"  # of the fake engine


def measure(plan: Plan, folder: Path, stop_after: int | None = None) -> list[dict[str, Any]]:
    executed(plan, folder, stop_after=stop_after)
    return latest_records(folder)


def prompts(calls: list[dict[str, Any]]) -> Iterator[str]:
    for call in calls:
        yield "".join(map(chr, call["prompt_ids"]))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_turn_follows_the_answers_before_it(engine, tmp_path, batch_size):
    engine.tokenizer = ByCharacter()
    plan = plan_of(["sd"], task_of(LONE, TALK), batch_size=batch_size)
    samples = measure(plan, tmp_path / "r")
    turns = [("lone", "math", None), *(("talk", None, turn) for turn in (1, 2, 3))]
    assert [(r.sample_id, r.category, r.turn) for r in samples] == turns
    assert len(plan) == len(samples) == 4
    assert [r.quality for r in samples] == [1.0, 1.0, None, 0.0]  # each turn has its reference
    texts = list(dict.fromkeys(prompts(engine.calls)))
    second = f"one\n\n{ANSWER}\n\ntwo"
    assert texts == ["alone", "one", second, f"{second}\n\n{ANSWER}\n\nsix"]
    assert len({call["sample_key"] for call in engine.calls}) == 4  # fresh random numbers
    # The caches hold the last turn with all answers.
    assert engine.reserved[0] == len("one\n\n\n\ntwo\n\n\n\nsix") + 3 * 16 + 5 + 1


def test_a_target_agrees_with_itself_within_thoughts_that_the_prompt_began(engine, tmp_path):
    engine.tokenizer = ByCharacter()
    task = task_of(Example("e", "Why? <think>\n"), metrics=("agreement",))
    assert [r.quality for r in measure(plan_of(["sd"], task), tmp_path / "r")] == [1.0]


def test_a_conversation_stopped_at_any_turn_resumes_to_the_same_tables(engine, tmp_path):
    plan = plan_of(["autoregressive", "sd"], task_of(TALK, LONE, metrics=("agreement",)))
    whole = tmp_path / "whole" / "r"
    assert len(measure(plan, whole)) == 8
    for stop_after in (1, 2, 3, 4, 5):
        folder = tmp_path / str(stop_after) / "r"
        assert len(measure(plan, folder, stop_after)) == stop_after
        measure(plan, folder)
        assert tables(folder) == tables(whole)


def test_the_turns_after_a_failed_one_fail_and_are_retried(engine, tmp_path):
    plan = plan_of(["sd"], task_of(TALK))
    engine.failing = {2: ValueError("no")}  # after the warm-up and the first turn
    samples = measure(plan, tmp_path / "r")
    assert [r.status for r in samples] == ["ok", ERROR, ERROR]
    assert "earlier turn" in samples[2].error
    engine.failing = {}
    assert [r.status for r in measure(plan, tmp_path / "r")] == ["ok"] * 3


def test_samples_without_turns_keep_their_names_and_keys():
    """The keys of unfinished runs must not change with labels or the fields of conversations."""
    before = Example("e", "p", "1")  # a number, since references are read before decoding
    fields = {"id", "prompt", "reference", "tests", "passage", "code_prefix", "entry_point"}
    assert before.identity().keys() == fields
    labelled = replace(before, category="math", columns={"level": 3})
    plans = [plan_of(["sd"], task_of(example)) for example in (before, labelled, TALK)]
    keys = [[sample_keys(plan, {}, "eager")(step) for step in plan.steps()] for plan in plans]
    assert keys[0] == keys[1] and len(set(keys[2])) == 3
    assert next(plans[0].steps()).sample_key == "t/e/0"


def greedy_calls(engine: Any) -> list[dict[str, Any]]:
    return [call for call in engine.calls if call["sampling"].temperature == 0]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_greedy_text_is_made_once_per_prompt_and_stored(engine, tmp_path, batch_size):
    task = task_of(TALK, LONE, metrics=("agreement",))
    plan = plan_of(["autoregressive", "sd"], task, batch_size=batch_size, repeats=2)
    samples = measure(plan, tmp_path / "r")
    assert len(greedy_calls(engine)) == 4  # one per prompt or turn
    assert all(call["rule"] is None and not call["draft_length"] for call in greedy_calls(engine))
    assert {(r.greedy, r.quality) for r in samples} == {(ANSWER, 1.0)}
    assert "greedy" not in measure(plan_of(["sd"], task_of(LONE)), tmp_path / "s")[0]
    assert len(greedy_calls(engine)) == 4


def test_agreement_is_scored_again_from_the_stored_texts(engine, tmp_path):
    folder = tmp_path / "r"
    measure(plan_of(["sd"], task_of(TALK, LONE, metrics=("agreement",))), folder)
    before = (folder / "samples.csv").read_bytes()
    text = (folder / RECORDS).read_text()
    (folder / RECORDS).write_text(text.replace('"scores": {"agreement": 1.0}', '"scores": {}'))
    score_run(open_run(folder), may_execute=False)
    assert (folder / "samples.csv").read_bytes() == before
    # The second metric needs the same texts; a run without them cannot have it.
    score_run(open_run(folder, ["agreement-prefix"]), may_execute=False)
    assert {r.scores["agreement-prefix"] for r in latest_records(folder)} == {1.0}
    measure(plan_of(["sd"], task_of(LONE)), tmp_path / "s")
    assert "greedy" in open_run(tmp_path / "s", ["agreement"]).notes[0]


def test_a_prompt_without_room_for_its_last_turn_loses_only_that_turn(engine, tmp_path):
    engine.tokenizer, engine.context = ByCharacter(), 30
    samples = measure(plan_of(["sd"], task_of(TALK)), tmp_path / "r")
    assert [r.status for r in samples] == ["ok", ERROR, ERROR]
    # Its beginning may be cut.
    passage = "one, or a long text to sum up"
    cut = Example("c", passage, passage=passage, turns=(passage, "two"), references=(None, None))
    engine.context = 50
    samples = measure(plan_of(["sd"], task_of(cut)), tmp_path / "s")
    assert [r.status for r in samples] == ["ok", "ok"]
    assert samples[0].prompt_cut == 1 < samples[1].prompt_cut
