"""BLEU by sacrebleu with its defaults: tokenizer 13a, mixed case, exponential smoothing.

A sample has a sentence BLEU. Corpus BLEU is not the mean over samples but a function of summed
counts, so each sample also stores its counts.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from specbench.tasks.metrics.metric import metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench.tasks.example import Example

ORDERS = 4  # n-grams of 1 to 4 words
TERMS = 2 + 2 * ORDERS


@metric("BLEU", name="bleu")
def sentence_bleu(text: str, example: Example) -> float:
    """Return the BLEU of one text, in [0, 1].

    N-gram orders longer than the text are ignored (``effective_order=True``, as sacrebleu
    recommends for sentences).

    Args:
        text: Generated translation; line breaks count as spaces.
        example: Example with a reference translation.
    """
    return min(1.0, float(_sentence(text, example).score) / 100)  # rounding may exceed 1


def bleu_terms(text: str, example: Example) -> list[int]:
    """Return the counts of one text for corpus BLEU.

    Returns:
        [10] tokens of the text and of the reference, n-grams of order 1 to 4 shared with the
        reference, n-grams of order 1 to 4 of the text.
    """
    counts = _sentence(text, example)
    return [counts.sys_len, counts.ref_len, *counts.counts, *counts.totals]


def corpus_bleu(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return corpus BLEU, in [0, 1], from summed terms.

    The formula is sacrebleu's, vectorised over corpora: the geometric mean of the n-gram
    precisions, with 1/2, 1/4, ... matches for successive orders without a match, times the brevity
    penalty.

    Args:
        totals: [..., 10] sums of ``bleu_terms``.
    """
    import numpy as np

    length, reference = totals[..., 0], totals[..., 1]
    shared, all_ = totals[..., 2 : 2 + ORDERS], totals[..., 2 + ORDERS :]
    halvings = np.cumsum(shared == 0, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(shared > 0, shared, 0.5**halvings) / all_
        score = np.exp(np.log(precision).mean(axis=-1) + np.minimum(0, 1 - reference / length))
    defined = (shared > 0).any(axis=-1) & (all_ > 0).all(axis=-1)
    return np.where(defined, score, 0.0)


def _sentence(text: str, example: Example) -> Any:
    # sacrebleu works on lines, but a text with line breaks is one segment.
    reference = " ".join((example.reference or "").split())
    return _scorer().sentence_score(" ".join(text.split()), [reference])


@cache
def _scorer() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)
