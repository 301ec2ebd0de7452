"""Quality metrics: functions ``(text, example) -> score in [0, 1]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, cast

from specbench.errors import UsageError
from specbench.words import unknown

if TYPE_CHECKING:
    from specbench.example import Example


@dataclass(frozen=True)
class Metric:
    """A metric and its name in task files; its code is imported on first use."""

    name: str
    function: str  # `module:function`
    unit: str  # name of the score in tables and on axes
    # the field of an example that the metric uses; see ``Example.greedy``
    needs: Literal["reference", "tests", "greedy"]
    scale: float = 100.0  # factor from a score in [0, 1] to the displayed number
    executes: bool = False  # scoring runs generated code

    def load(self) -> Callable[[str, Example], float]:
        """Import and return the metric's function."""
        module, function = self.function.split(":")
        return cast("Callable[[str, Example], float]", getattr(import_module(module), function))


BLEU = "bleu"  # not a mean over samples: see ``metrics.bleu``
AGREEMENT = "agreement"
GREEDY: Final = "greedy"  # the need of metrics that compare with the target's own greedy text

_ACCURACY = "specbench.metrics.accuracy:"
_ROUGE = "specbench.metrics.rouge:"
_AGREEMENT = "specbench.metrics.agreement:"

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
        Metric("pass@1", "specbench.metrics.code:pass_at_1", "pass@1", "tests", executes=True),
    )
}


def get_metric(name: str) -> Metric:
    """Return a metric by its name.

    Raises:
        UsageError: There is no such metric.
    """
    if name not in METRICS:
        raise UsageError(unknown("metric", name, METRICS))
    return METRICS[name]


def score(metric: str, text: str, example: Example) -> float:
    """Score a generated text, without its end-of-sequence token, in [0, 1].

    Raises:
        UsageError: Unknown metric, or an example without the field that the metric needs.
        RunError: A program could not be started (pass@1).
    """
    chosen = get_metric(metric)
    if not getattr(example, chosen.needs):
        what = f"the metric `{metric}` needs `{chosen.needs}`"
        raise UsageError(f"{what}, which example `{example.id}` lacks; add it")
    return chosen.load()(text, example)
