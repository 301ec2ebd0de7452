"""Agreement with the target's own greedy text, and similarity of code to a reference.

The greedy text is the target's answer at temperature 0, made once per prompt by the same run. Words
are lower-cased runs of letters and digits of any script; other characters count one by one.

Code is scored as completion benchmarks do, CodeXGLUE (arXiv:2102.04664) and RepoBench
(arXiv:2306.03091), with the ratio of `rapidfuzz` in place of its slower predecessor; surrounding
space is free.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import takewhile
from types import SimpleNamespace
from typing import TYPE_CHECKING

from specbench.tasks.example import Example
from specbench.tasks.metrics.metric import GREEDY, metric
from specbench.tasks.metrics.sandbox.statements import read_python

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

_WORD = re.compile(r"\w+|[^\w\s]")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@metric("agreement", needs=GREEDY)
def agreement(text: str, example: Example) -> float:
    """Return ROUGE-L F1 against the target's own greedy text.

    Two texts without words agree. In scripts without spaces a word is a whole clause.
    """
    if not (_words(text) or _words(example.greedy or "")):
        return 1.0
    return float(_scorer().score(example.greedy or "", text)["rougeL"].fmeasure)


@metric("agreeing prefix", name="agreement-prefix", needs=GREEDY)
def prefix_share(text: str, example: Example) -> float:
    """Return the share of words before the first difference from the target's greedy text."""
    words, greedy_words = _words(text), _words(example.greedy or "")
    if not (words or greedy_words):
        return 1.0
    pairs = zip(words, greedy_words, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same / max(len(words), len(greedy_words))


@cache
def _scorer() -> RougeScorer:
    """Return a scorer by words of any script; its own tokenizer knows only the letters a to z."""
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=SimpleNamespace(tokenize=_words))


@metric("edit similarity")
def edit_similarity(text: str, example: Example) -> float:
    """Return 1 minus insertions and deletions per character of both text and reference."""
    from rapidfuzz.fuzz import ratio

    return ratio(text.strip(), (example.reference or "").strip()) / 100


@metric("exact match")
def exact_match(text: str, example: Example) -> float:
    """Return 1 if the text is the reference, else 0."""
    return float(text.strip() == (example.reference or "").strip())


@metric("valid Python", needs="code_prefix")
def parses(text: str, example: Example) -> float:
    """Return 1 if the example's code prefix, continued by the text, is valid Python, else 0."""
    return float(read_python(example.code_prefix + text)[0] is not None)
