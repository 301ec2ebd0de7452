"""What the scores of a generated text add to its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specbench.analysis.frames import BLEU_TERMS
from specbench.errors import SpecbenchError
from specbench.example import Example
from specbench.experiment.records import OK, UNSCORED
from specbench.masking import mask_tokens
from specbench.metrics import BLEU, get_metric, score


def score_text(
    metrics: Sequence[str], text: str, example: Example, *, may_execute: bool
) -> dict[str, Any]:
    """Return what the scores of a text add to a sample's record.

    Args:
        metrics: Keys of ``METRICS``; the first one stands for quality.
        text: Generated text.
        example: The example that it answers.
        may_execute: Whether metrics that run generated code may do so.

    Returns:
        ``quality``; ``scores`` by metric, None where the example lacks what the metric compares
        with, where the metric failed, or where it may not run code; ``status``, ``unscored`` where
        a metric failed, with its ``error``; and the terms of BLEU where that was measured.
    """
    scores: dict[str, float | None] = {}
    fields: dict[str, Any] = {}
    errors: list[str] = []
    for name in metrics:
        scores[name] = None
        metric = get_metric(name)
        if not getattr(example, metric.needs) or (metric.executes and not may_execute):
            continue
        try:
            scores[name] = score(name, text, example)
            if name == BLEU:
                from specbench.metrics.bleu import bleu_terms

                fields[BLEU_TERMS] = bleu_terms(text, example)
        except Exception as error:
            errors.append(describe_error(error))
    fields |= {"quality": scores[metrics[0]] if metrics else None, "scores": scores}
    if not errors:
        return {**fields, "status": OK}
    return {**fields, "status": UNSCORED, "error": "; ".join(dict.fromkeys(errors))}


def describe_error(error: Exception) -> str:
    """Return what a record says of an error."""
    said = str(error) if isinstance(error, SpecbenchError) else f"{type(error).__name__}: {error}"
    return mask_tokens(said)
