"""The columns of a record that come from scoring."""

from dataclasses import replace
from functools import partial

import pytest

from specbench import metrics
from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.measurements import score_text

EXAMPLE = Example("e", "prompt", "so #### 7", ("assert f() == 7",))
PROGRAM = "def f():\n    return 7"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, Exception]:
    """Metrics that raise instead of scoring."""
    errors: dict[str, Exception] = {}

    def score(metric: metrics.Metric, text: str, example: Example) -> float:
        if metric.name in errors:
            raise errors[metric.name]
        return metric.function(text, example)

    for name, metric in metrics.METRICS.items():
        spoilt = replace(metric, function=partial(score, metric))
        monkeypatch.setitem(metrics.METRICS, name, spoilt)
    return errors


def test_the_first_metric_stands_for_quality_and_what_cannot_be_compared_is_blank() -> None:
    names = ("accuracy", "accuracy-flexible", "rouge1")
    assert score_text(names, "in all 7", EXAMPLE, may_execute=False) == {
        "quality": 0.0,
        "scores": {"accuracy": 0.0, "accuracy-flexible": 1.0, "rouge1": pytest.approx(0.4)},
        "status": "ok",
    }
    blank = {"quality": None, "status": "ok"}
    assert score_text((), "text", EXAMPLE, may_execute=True) == {**blank, "scores": {}}
    found = score_text(("accuracy", "pass@1"), "#### 7", Example("e", "p"), may_execute=True)
    assert found == {**blank, "scores": {"accuracy": None, "pass@1": None}}


def test_code_is_executed_only_with_permission(failing: dict[str, Exception]) -> None:
    names = ("pass@1", "rouge1")
    allowed = score_text(names, PROGRAM, EXAMPLE, may_execute=True)
    assert (allowed["quality"], allowed["scores"]["pass@1"]) == (1.0, 1.0)
    failing["pass@1"] = AssertionError("it was run")
    held = score_text(names, PROGRAM, EXAMPLE, may_execute=False)
    assert (held["quality"], held["status"]) == (None, "ok")
    assert held["scores"] == {"pass@1": None, "rouge1": allowed["scores"]["rouge1"]}


def test_a_metric_that_fails_leaves_the_others(failing: dict[str, Exception]) -> None:
    failing.update(accuracy=UsageError("no number"), rouge1=ValueError("odd"))
    found = score_text(("accuracy", "rouge1", "rouge2"), "so #### 7", EXAMPLE, may_execute=False)
    assert found == {
        "quality": None,
        "scores": {"accuracy": None, "rouge1": None, "rouge2": 1.0},
        "status": "unscored",
        "error": "no number; ValueError: odd",
    }


def test_bleu_keeps_the_terms_of_the_corpus_figure() -> None:
    example = Example("e", "prompt", "a b c d e")
    found = score_text(("rouge2", "bleu"), "a b c d", example, may_execute=False)
    assert found["bleu_terms"] == [4, 5, 4, 3, 2, 1, 4, 3, 2, 1]
    assert 0 < found["scores"]["bleu"] < 1
    assert "bleu_terms" not in score_text(("rouge2",), "a b c d", example, may_execute=False)
