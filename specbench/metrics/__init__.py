"""Quality metrics: functions ``(text, example) -> score in [0, 1]``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from numbers import Real
from typing import TYPE_CHECKING, Final, Literal, cast

from specbench import plugins
from specbench.errors import UsageError
from specbench.words import unknown

if TYPE_CHECKING:
    from specbench.example import Example


@dataclass(frozen=True)
class Metric:
    """A metric and its name in task files; its code is imported on first use."""

    name: str
    function: str | Callable[[str, str], float]  # `module:function`, or the user's own
    unit: str  # name of the score in tables and on axes
    # the field of an example that the metric uses; see ``Example.greedy``
    needs: Literal["reference", "tests", "greedy", "code_prefix"]
    scale: float = 100.0  # factor from a score in [0, 1] to the displayed number
    executes: bool = False  # scoring runs generated code
    digest: str | None = None  # of the source of the user's own metric

    def load(self) -> Callable[[str, Example], float]:
        """Import and return the metric's function."""
        if not isinstance(self.function, str):
            return partial(_own_score, self.name, self.function)
        module, function = self.function.split(":")
        return cast("Callable[[str, Example], float]", getattr(import_module(module), function))

    def suits(self, example: Example) -> bool:
        """Return whether an example has what the metric needs; a greedy text may be empty."""
        value = getattr(example, self.needs)
        return value is not None if self.needs == GREEDY else bool(value)


GROUP = "specbench.metrics"  # of entry points
BLEU = "bleu"  # not a mean over samples: see ``metrics.bleu``
AGREEMENT = "agreement"
GREEDY: Final = "greedy"  # the need of metrics that compare with the target's own greedy text

_ACCURACY = "specbench.metrics.accuracy:"
_ROUGE = "specbench.metrics.rouge:"
_AGREEMENT = "specbench.metrics.agreement:"
_SIMILARITY = "specbench.metrics.similarity:"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _ACCURACY + "accuracy", "accuracy", "reference"),
        Metric(
            "accuracy-flexible", _ACCURACY + "accuracy_flexible", "flexible accuracy", "reference"
        ),
        Metric("rouge1", _ROUGE + "rouge1", "ROUGE-1", "reference"),
        Metric("rouge2", _ROUGE + "rouge2", "ROUGE-2", "reference"),
        Metric("rougeL", _ROUGE + "rougeL", "ROUGE-L", "reference"),
        # The first 32 words of the text, as in the paper for XSum.
        Metric("rouge1-32", _ROUGE + "rouge1_32", "ROUGE-1 of 32 words", "reference"),
        Metric("rouge2-32", _ROUGE + "rouge2_32", "ROUGE-2 of 32 words", "reference"),
        Metric("rougeL-32", _ROUGE + "rougeL_32", "ROUGE-L of 32 words", "reference"),
        Metric(BLEU, "specbench.metrics.bleu:sentence_bleu", "BLEU", "reference"),
        Metric(AGREEMENT, _AGREEMENT + "agreement", "agreement", GREEDY),
        Metric("agreement-prefix", _AGREEMENT + "prefix_share", "agreeing prefix", GREEDY),
        Metric("edit-similarity", _SIMILARITY + "edit_similarity", "edit similarity", "reference"),
        Metric("exact-match", _SIMILARITY + "exact_match", "exact match", "reference"),
        Metric("parses", _SIMILARITY + "parses", "valid Python", "code_prefix"),
        Metric("pass@1", "specbench.metrics.code:pass_at_1", "pass@1", "tests", executes=True),
    )
}


def get_metric(name: str) -> Metric:
    """Return a metric by its name: one of ``METRICS``, ``FILE.py:FUNCTION``, or installed.

    Raises:
        UsageError: There is no such metric, or one of the user's own cannot be loaded.
    """
    if name in METRICS:
        return METRICS[name]
    plugin = plugins.find(name, GROUP)
    if plugin is None:
        raise UsageError(unknown("metric", name, [*METRICS, *plugins.installed(GROUP)]))
    short = plugins.short_name(plugin.name)
    if short in METRICS:
        raise UsageError(f"{plugin.name}: there is a metric {short} already: rename the function")
    try:
        inspect.signature(plugin.function).bind("text", "reference")
    except TypeError as error:
        location = plugins.place(plugin.name, plugin.function)
        raise UsageError(f"{location} must take a text and its reference ({error})") from error
    return Metric(plugin.name, plugin.function, short, "reference", digest=plugin.digest)


def shown_metric(name: object) -> tuple[str, float]:
    """Return the name of a recorded metric in tables, and the factor from its score in [0, 1].

    A metric of the user's own is shown under its function's name; without a metric the name is
    blank.
    """
    if name in METRICS:
        return METRICS[str(name)].unit, METRICS[str(name)].scale
    return (name, 100.0) if isinstance(name, str) and name else ("", 1.0)


def try_metrics(names: Iterable[str], examples: Iterable[Example]) -> None:
    """Score a reference with each of the user's own metrics, to find mistakes before a run.

    Raises:
        UsageError: The metric raises, or does not return a number from 0 to 1.
    """
    custom = [name for name in names if get_metric(name).digest is not None]
    for example in [example for example in examples if example.reference][:1]:
        for name in custom:
            score(name, example.reference or "", example)


def _own_score(
    name: str, function: Callable[[str, str], float], text: str, example: Example
) -> float:
    location = plugins.place(name, function)
    with plugins.user_code(function, f"{name} on example {example.id}"):
        value = function(text, example.reference or "")
        in_range = isinstance(value, Real) and 0 <= value <= 1
        text_of_value = repr(value)
    if not in_range:
        raise UsageError(
            f"{location} must return a number from 0 to 1, not {text_of_value}: correct it"
        )
    return float(value)


def score(metric: str, text: str, example: Example) -> float:
    """Score a generated text in [0, 1].

    Args:
        metric: A name that ``get_metric`` knows.
        text: The text without its end-of-sequence token.
        example: The example that it answers, with the field that the metric needs.

    Raises:
        UsageError: Unknown metric, or an example without the field that the metric needs.
        RunError: A program could not be started (pass@1).
    """
    chosen = get_metric(metric)
    if not chosen.suits(example):
        need = f"the metric `{metric}` needs `{chosen.needs}`"
        raise UsageError(f"{need}, which example `{example.id}` lacks; add it")
    return chosen.load()(text, example)
