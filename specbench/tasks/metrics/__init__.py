"""Quality metrics: functions ``(text, example) -> score in [0, 1]``.

A bundled metric is declared where it is defined, by the decorator ``metric``. What a metric needs
beyond Python is imported on its first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

from specbench import plugins
from specbench.errors import UsageError, unknown
from specbench.tasks.example import Example
from specbench.tasks.metrics.metric import GREEDY, Metric, metric

__all__ = ["GREEDY", "METRICS", "Metric", "get_metric", "metric", "score"]

BLEU = "bleu"  # not a mean over samples: see ``metrics.overlap``
AGREEMENT = "agreement"
ACCURACIES = {"accuracy", "accuracy-flexible"}

ORDER = ("accuracy", "overlap", "agreement", "code")
"""The modules whose metrics come first in lists, in this order."""

METRICS = {metric.name: metric for metric in plugins.bundled(__name__, Metric, ORDER)}
"""Every metric by name."""


def get_metric(name: str) -> Metric:
    """Return a metric by its name: one of ``METRICS`` or ``FILE.py:FUNCTION``."""
    if name in METRICS:
        return METRICS[name]
    plugin = plugins.find(name)
    if plugin is None:
        raise UsageError(unknown("metric", name, METRICS))
    short = plugins.short_name(plugin.name)
    if short in METRICS:
        raise UsageError(f"{plugin.name}: there is a metric {short} already: rename the function")
    declaration = plugins.declared(plugin.function, Metric)
    custom = declaration or Metric(plugin.name, plugin.function, short)
    argument = "reference" if declaration is None else "example"
    try:
        inspect.signature(plugin.function).bind("text", argument)
    except TypeError as error:
        location = plugins.place(plugin.name, plugin.function)
        raise UsageError(f"{location} must take a text and its {argument} ({error})") from error
    function = partial(_own_score, plugin.name, plugin.function, argument)
    return replace(custom, name=plugin.name, function=function, unit=short, digest=plugin.digest)


def shown_metric(name: object) -> tuple[str, float]:
    """Return the name of a recorded metric in tables, and the factor from its score in [0, 1].

    A metric of the user's own is shown under its function's name; without a metric the name is
    blank.
    """
    if name in METRICS:
        return METRICS[str(name)].unit, METRICS[str(name)].scale
    return (name, 100.0) if isinstance(name, str) and name else ("", 1.0)


def try_metrics(names: Iterable[str], examples: Iterable[Example]) -> None:
    """Refuse references that no number can be read from, and mistakes of the user's own metrics."""
    names, examples = [*names], [turn for each in examples for turn in each.each_turn()]
    for name in ACCURACIES & {*names}:
        for example in filter(get_metric(name).suits, examples):
            score(name, "", example)
    custom = [name for name in names if get_metric(name).digest is not None]
    for example in [example for example in examples if example.reference][:1]:
        for name in custom:
            if get_metric(name).suits(example):
                score(name, example.reference or "", example)


def _own_score(
    name: str, function: Callable[[str, Any], float], argument: str, text: str, example: Example
) -> float:
    """Score a text by the user's function, which takes the example or only its reference."""
    location = plugins.place(name, function)
    with plugins.user_code(function, f"{name} on example {example.id}"):
        value = function(text, example if argument == "example" else example.reference or "")
        in_range = isinstance(value, Real) and 0 <= value <= 1
        text_of_value = repr(value)
    if not in_range:
        raise UsageError(
            f"{location} must return a number from 0 to 1, not {text_of_value}: correct it"
        )
    return float(value)


def score(metric: str, text: str, example: Example) -> float:
    """Score a generated text, without its end token, in [0, 1] by a metric that has this name.

    If the example has several references, the best score counts. pass@1 raises ``RunError`` if a
    program could not be started.
    """
    chosen = get_metric(metric)
    if not chosen.suits(example):
        need = f"the metric `{metric}` needs `{chosen.needs}`"
        raise UsageError(f"{need}, which example `{example.id}` lacks; add it")
    examples = example.with_each_reference() if chosen.needs == "reference" else [example]
    scores, unread = [], None
    for each in examples:
        try:
            scores.append(chosen.function(text, each))
        except UsageError as error:  # an alternative that the metric cannot read
            unread = error
    if unread and (not scores or chosen.digest is not None):
        raise unread
    return max(scores)
