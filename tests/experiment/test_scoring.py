"""The columns of a record that come from scoring."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.experiment.measurements import doubtful_thoughts, score_text, thought_tokens
from specbench.tasks import metrics
from specbench.tasks.example import Example
from specbench.tasks.thoughts import answer_in

from ..engine.tiny import tokenizer
from ..synthetic import sample_record
from ..tasks.metrics.conftest import takes_less
from ..told import listed
from .runs import ByCharacter

EXAMPLE = Example("e", "prompt", "so #### 7", ("assert f() == 7",))
PROGRAM = "def f():\n    return 7"


def scored(
    metrics: Sequence[str], text: str, example: Example, *, may_execute: bool, **fields: Any
) -> dict[str, Any]:
    fields = {"text": text, "output_tokens": 9, "stopped_by": "eos"} | fields
    record = sample_record(**fields)
    return score_text(metrics, record, example.scored(record), may_execute=may_execute)


@pytest.fixture
def failing(monkeypatch) -> dict[str, Exception]:
    errors: dict[str, Exception] = {}

    def score(metric: metrics.Metric, text: str, example: Example) -> float:
        if metric.name in errors:
            raise errors[metric.name]
        return metric.function(text, example)

    for name, metric in metrics.METRICS.items():
        spoilt = replace(metric, function=partial(score, metric))
        monkeypatch.setitem(metrics.METRICS, name, spoilt)
    return errors


def test_the_first_metric_stands_for_quality_and_what_cannot_be_compared_is_blank():
    names = ("accuracy", "accuracy-flexible", "rouge1")
    assert scored(names, "in all 7", EXAMPLE, may_execute=False) == {
        "quality": 0.0,
        "scores": {"accuracy": 0.0, "accuracy-flexible": 1.0, "rouge1": pytest.approx(0.4)},
        "status": "ok",
    }
    blank = {"quality": None, "status": "ok"}
    assert scored((), "text", EXAMPLE, may_execute=True) == {**blank, "scores": {}}
    fields = scored(("accuracy", "pass@1"), "#### 7", Example("e", "p"), may_execute=True)
    assert fields == {**blank, "scores": {"accuracy": None, "pass@1": None}}


def test_code_is_executed_only_with_permission_and_a_failed_metric_leaves_the_others(failing):
    names = ("pass@1", "rouge1")
    allowed = scored(names, PROGRAM, EXAMPLE, may_execute=True)
    assert (allowed["quality"], allowed["scores"]["pass@1"]) == (1.0, 1.0)
    failing["pass@1"] = AssertionError("it was run")
    held = scored(names, PROGRAM, EXAMPLE, may_execute=False)
    assert (held["quality"], held["status"]) == (None, "ok")
    assert held["scores"] == {"pass@1": None, "rouge1": allowed["scores"]["rouge1"]}
    failing.update(accuracy=UsageError("no number"), rouge1=ValueError("odd"))
    fields = scored(("accuracy", "rouge1", "rouge2"), "so #### 7", EXAMPLE, may_execute=False)
    assert fields == {
        **{"quality": None, "scores": {"accuracy": None, "rouge1": None, "rouge2": 1.0}},
        **{"status": "unscored", "error": "no number; ValueError: odd"},
    }


def test_bleu_keeps_the_terms_of_the_corpus_figure():
    example = Example("e", "prompt", "a b c d e")
    fields = scored(("rouge2", "bleu"), "a b c d", example, may_execute=False)
    assert fields["bleu_terms"] == [4, 5, 4, 3, 2, 1, 4, 3, 2, 1]
    assert 0 < fields["scores"]["bleu"] < 1
    assert "bleu_terms" not in scored(("rouge2",), "a b c d", example, may_execute=False)


@pytest.mark.parametrize(("text", "stopped_by", "expected"), listed("tasks/thoughts.txt"))
def test_a_cut_answer_must_state_its_number_and_thoughts_state_none(text, stopped_by, expected):
    fields = scored(("accuracy-flexible",), text, EXAMPLE, may_execute=False, stopped_by=stopped_by)
    assert fields["quality"] == expected


def test_an_answer_behind_a_long_gap_is_read_at_once():
    text = "</think>a" + " " * 20_000 + "x"
    assert answer_in(text) == text.removeprefix("</think>")
    assert takes_less(lambda: answer_in(text), 0.5)  # in time that grows with its square: 5 s


def test_tokens_of_thoughts_are_counted_apart():
    for prompt, text, count, answer in (
        *(("Why?", "7 of <think>s", None, "7 of <think>s"), ("Why?", "<think>3</think>7", 16, "7")),
        *(("Why? <think>\n", "3</think>\n7", 9, "7"), ("Why? <think>\n", "3 and so", 8, "")),
        *(("Why? <think>\n\n</think>\n\n", "7", None, "7"), ("Why <think>? ", "7", None, "7")),
        *(("Why?", "<think>3", 8, ""), ("Why?", "a</think>b</think>7", 18, "7")),
        ("Why? [THINK]", "3[/THINK]7", 9, "7"),
        ("Why?", "<|channel|>analysis<|message|>3", 31, ""),
    ):
        tokens = [*map(ord, text)]
        assert thought_tokens(ByCharacter(), [*map(ord, prompt)], tokens, len(tokens)) == count
        example = Example("e", "prompt", answer or "x")
        fields = scored(("exact-match",), text, example, may_execute=False, thought_tokens=count)
        assert fields["quality"] == (1.0 if answer else 0.0)


def test_marks_that_are_open_or_new_are_noted_and_special_tokens_stay(stored):
    notes = []
    opened = ("<think>3, so", "analysisWe", "<ponder>3</ponder>7", "[REASONING] 3 [/REASONING] 7")
    for text in (*opened, "<think>3</think>7", "<b>thought</b>", "[1] I think"):
        records = [sample_record(text=each) for each in (text, text, "7")]
        noted = doubtful_thoughts([*records, sample_record(method="static", text="7")])
        notes.append(f"{text}: {'; '.join(noted)}")
    stored(*notes)
    letters = deepcopy(tokenizer())
    pair = LoadedPair("t", None, None, letters, frozenset())  # type: ignore[arg-type]
    plain = letters("ab")["input_ids"]
    letters.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]", "<pad>"]})
    marks = letters.convert_tokens_to_ids(["[THINK]", "[/THINK]", "<pad>"])
    assert pair.text_of([marks[0], *plain, marks[1], marks[2], *plain]) == "[THINK]ab[/THINK]ab"
    assert pair.text_of([*plain, marks[2]]) == "ab"
    assert pair.text_of(plain, ["b", "a"]) == "" and pair.text_of(plain, ["b"]) == "a"
