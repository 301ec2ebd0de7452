"""ROUGE (Lin, 2004): overlap of unigrams, bigrams and longest common subsequence.

Scores are the F1 of `rouge-score`, with lower-cased words and Porter stemming
(``use_stemmer=True``). ROUGE-L treats the whole text as one sequence of words. Words consist of the
letters a to z and digits only, so texts in other scripts score 0.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from rouge_score.rouge_scorer import RougeScorer

if TYPE_CHECKING:
    from specbench.example import Example

SHORT_SUMMARY = 32  # words of an XSum summary scored by the paper


def _f1(kind: str, text: str, example: Example) -> float:
    return float(_scorer(kind).score(example.reference or "", text)[kind].fmeasure)


def _f1_of_start(kind: str, text: str, example: Example) -> float:
    """Score only the first words of the generated text against the whole reference."""
    return _f1(kind, " ".join(text.split()[:SHORT_SUMMARY]), example)


@cache
def _scorer(kind: str) -> RougeScorer:
    return RougeScorer([kind], use_stemmer=True)


# Each takes a text and an example with a reference, and returns a score in [0, 1].
rouge1 = partial(_f1, "rouge1")
rouge2 = partial(_f1, "rouge2")
rougeL = partial(_f1, "rougeL")
rouge1_32 = partial(_f1_of_start, "rouge1")
rouge2_32 = partial(_f1_of_start, "rouge2")
rougeL_32 = partial(_f1_of_start, "rougeL")
