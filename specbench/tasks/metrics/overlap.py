"""ROUGE and BLEU: shared words and n-grams.

ROUGE (Lin, 2004) is the F1 of `rouge-score`, with lower-cased words and Porter stemming
(``use_stemmer=True``). ROUGE-L treats the whole text as one sequence of words. Words consist of the
letters a to z and digits only, as in `rouge-score`, unless more than one in 200 letters of the
reference is another (a single one in an English article is a name or damage). Then words consist of
the letters, marks and digits of any script, and every character of a script that is written without
spaces, such as Chinese, is a word. Words with other letters than a to z are not stemmed.

BLEU is that of sacrebleu with its defaults: tokenizer 13a, mixed case, exponential smoothing. A
sample has a sentence BLEU. Corpus BLEU is not the mean over samples but a function of summed
counts, so each sample also stores its counts.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from specbench.tasks.example import Example
from specbench.tasks.metrics.metric import metric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rouge_score.rouge_scorer import RougeScorer

SHORT_SUMMARY = 32  # words of an XSum summary scored by the paper
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"  # scripts
STRAY = 1 / 200  # share of letters beyond a to z in English references
ORDERS = 4  # n-grams of 1 to 4 words
TERMS = 2 + 2 * ORDERS


@metric("ROUGE-1")
def rouge1(text: str, example: Example) -> float:
    """Return ROUGE-1, the F1 of words."""
    return _f1("rouge1", text, example)


@metric("ROUGE-2")
def rouge2(text: str, example: Example) -> float:
    """Return ROUGE-2, the F1 of pairs of words."""
    return _f1("rouge2", text, example)


@metric("ROUGE-L")
def rougeL(text: str, example: Example) -> float:
    """Return ROUGE-L, the F1 of the longest common subsequence of words."""
    return _f1("rougeL", text, example)


@metric("ROUGE-1 of 32 words")
def rouge1_32(text: str, example: Example) -> float:
    """Return ROUGE-1 of the first 32 words, as in the paper for XSum."""
    return rouge1(_start(text), example)


@metric("ROUGE-2 of 32 words")
def rouge2_32(text: str, example: Example) -> float:
    """Return ROUGE-2 of the first 32 words, as in the paper for XSum."""
    return rouge2(_start(text), example)


@metric("ROUGE-L of 32 words")
def rougeL_32(text: str, example: Example) -> float:
    """Return ROUGE-L of the first 32 words, as in the paper for XSum."""
    return rougeL(_start(text), example)


def _start(text: str) -> str:
    return " ".join(text.split()[:SHORT_SUMMARY])


def _f1(kind: str, text: str, example: Example) -> float:
    reference = example.reference or ""
    letters = [c for c in normalize("NFC", reference) if c.isalpha()]
    any_script = sum(not c.isascii() for c in letters) > STRAY * len(letters)
    return float(_scorer(kind, any_script).score(reference, text)[kind].fmeasure)


@cache
def _scorer(kind: str, any_script: bool) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([kind], use_stemmer=True, tokenizer=_Words() if any_script else None)


class _Words:
    """Splits a text of any script into words, as ``RougeScorer`` asks of a tokenizer."""

    def __init__(self) -> None:
        import regex
        from rouge_score.tokenizers import DefaultTokenizer

        self._english = DefaultTokenizer(use_stemmer=True)
        self._word = regex.compile(
            rf"(?V1){UNSPACED}\p{{M}}*"
            rf"|[[\p{{L}}\p{{N}}]--{UNSPACED}][[\p{{L}}\p{{M}}\p{{N}}]--{UNSPACED}]*"
        )

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text in lower case, English ones stemmed."""
        words = self._word.findall(normalize("NFKC", text).lower())
        split = (self._english.tokenize(word) if word.isascii() else [word] for word in words)
        return [*chain.from_iterable(split)]


@metric("BLEU", name="bleu")
def sentence_bleu(text: str, example: Example) -> float:
    """Return sentence BLEU; corpus BLEU of a cell is computed from ``bleu_terms``.

    N-gram orders longer than the text are ignored (``effective_order=True``, as sacrebleu
    recommends for sentences).
    """
    return min(1.0, float(_sentence(text, example).score) / 100)  # rounding may exceed 1


def bleu_terms(text: str, example: Example) -> list[int]:
    """Return the 10 counts of one text for corpus BLEU, with its best reference.

    They are the tokens of the text and of the reference, the n-grams of order 1 to 4 that both
    have, and those of the text.
    """
    sentences = [_sentence(text, each) for each in example.with_each_reference()]
    counts = max(sentences, key=lambda sentence: float(sentence.score))
    return [counts.sys_len, counts.ref_len, *counts.counts, *counts.totals]


def corpus_bleu(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return corpus BLEU, in [0, 1], from sums ``[..., 10]`` of ``bleu_terms``.

    The formula is sacrebleu's, vectorised over corpora: the geometric mean of the n-gram
    precisions, with 1/2, 1/4, ... matches for successive orders without a match, times the brevity
    penalty.
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
    return _sacrebleu().sentence_score(" ".join(text.split()), [reference])


@cache
def _sacrebleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)
