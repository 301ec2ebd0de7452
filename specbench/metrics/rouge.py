"""ROUGE-2 (Lin, 2004): overlap of word pairs between a summary and its reference."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rouge_score.rouge_scorer import RougeScorer

if TYPE_CHECKING:
    from specbench.tasks.example import Example


@cache
def _scorer() -> RougeScorer:
    return RougeScorer(["rouge2"], use_stemmer=True)


def rouge2(text: str, example: Example) -> float:
    """Return the F1 of bigrams, with lower-cased words stemmed by Porter (``use_stemmer=True``).

    Args:
        text: Generated summary; with fewer than two words it scores 0.
        example: Its reference is the right summary.
    """
    return float(_scorer().score(example.reference or "", text)["rouge2"].fmeasure)
