"""ROUGE (Lin, 2004): overlap of unigrams, bigrams and longest common subsequence.

Scores are the F1 of `rouge-score`, with lower-cased words and Porter stemming
(``use_stemmer=True``). ROUGE-L treats the whole text as one sequence of words. Words consist of the
letters a to z and digits only, so texts in other scripts score 0.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from specbench.tasks.metrics.metric import metric

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

    from specbench.tasks.example import Example

SHORT_SUMMARY = 32  # words of an XSum summary scored by the paper


@metric("ROUGE-1")
def rouge1(text: str, example: Example) -> float:
    """Return the F1 of words."""
    return _f1("rouge1", text, example)


@metric("ROUGE-2")
def rouge2(text: str, example: Example) -> float:
    """Return the F1 of pairs of words."""
    return _f1("rouge2", text, example)


@metric("ROUGE-L")
def rougeL(text: str, example: Example) -> float:
    """Return the F1 of the longest common subsequence."""
    return _f1("rougeL", text, example)


@metric("ROUGE-1 of 32 words")
def rouge1_32(text: str, example: Example) -> float:
    """Return ``rouge1`` of the text's first words, as in the paper for XSum."""
    return rouge1(_start(text), example)


@metric("ROUGE-2 of 32 words")
def rouge2_32(text: str, example: Example) -> float:
    """Return ``rouge2`` of the text's first words, as in the paper for XSum."""
    return rouge2(_start(text), example)


@metric("ROUGE-L of 32 words")
def rougeL_32(text: str, example: Example) -> float:
    """Return ``rougeL`` of the text's first words, as in the paper for XSum."""
    return rougeL(_start(text), example)


def _start(text: str) -> str:
    return " ".join(text.split()[:SHORT_SUMMARY])


def _f1(kind: str, text: str, example: Example) -> float:
    return float(_scorer(kind).score(example.reference or "", text)[kind].fmeasure)


@cache
def _scorer(kind: str) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], use_stemmer=True)
