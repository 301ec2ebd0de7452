"""Similarity of code to a reference, as completion benchmarks score it; surrounding space is free.

Source: CodeXGLUE (arXiv:2102.04664) and RepoBench (arXiv:2306.03091), with the ratio of
``rapidfuzz`` in place of its slower predecessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.tasks.metrics.metric import metric
from specbench.tasks.metrics.sandbox.statements import read_python

if TYPE_CHECKING:
    from specbench.tasks.example import Example


@metric("edit similarity")
def edit_similarity(text: str, example: Example) -> float:
    """Return 1 minus the insertions and deletions between both texts per character of both."""
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
