"""Token-wise and block verification of one text in NumPy, written apart from `methods`.

A text has N drafts x ``[N]``, drawn from q ``[N, V]``, and the target's p ``[N + 1, V]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Form = Literal["tokens", "block"]
Thresholds = Callable[[Form, Floats, Floats, Sequence[int]], tuple[Floats, Floats]]


def thresholds(form: Form, p: Floats, q: Floats, x: Sequence[int]) -> tuple[Floats, Floats]:
    """Return below which uniform number each draft passes ``[N]``, and what ends a round.

    The second array ``[N + 1, V]`` is the distribution of the token that follows 0 to N accepted
    drafts: the residual, and after all drafts p.
    """
    n = len(x)
    ratio = np.array([p[i, token] / q[i, token] for i, token in enumerate(x)])
    share = np.ones(n + 1)  # P_0 to P_N of block verification
    if form == "block":
        for i in range(n):
            share[i + 1] = min(1.0, share[i] * ratio[i])
    mass = np.maximum(share[:n, None] * p[:n] - q, 0)
    room = mass.sum(-1)
    residual = np.where(room[:, None] > 0, mass / np.where(room > 0, room, 1)[:, None], p[:n])
    if form == "tokens":
        passing = np.minimum(ratio, 1)
    else:
        whole = room[1:] + 1 - share[1:n]
        inner = np.where(whole > 0, room[1:] / np.where(whole > 0, whole, 1), 1)
        passing = np.append(inner, share[n])[:n]
    return passing, np.concatenate((residual, p[n:]))


def accepted_drafts(form: Form, passed: Sequence[bool]) -> int:
    """Return how many drafts are accepted.

    They are those before the first that fails, or in a block those up to the last that passes.
    """
    marks = list(passed)
    if form == "tokens":
        return marks.index(False) if False in marks else len(marks)
    return max((i + 1 for i, mark in enumerate(marks) if mark), default=0)


def draw(distribution: Floats, uniform: float) -> int:
    """Return the first token at which the cumulative distribution exceeds a uniform number."""
    return int(np.searchsorted(distribution.cumsum(), uniform * distribution.sum(), side="right"))


def law_of_rounds(
    form: Form, p: Floats, q: Floats, kernel: Thresholds = thresholds
) -> tuple[Floats, Floats]:
    """Return the law of a text's first N + 1 tokens, and of the number of accepted drafts.

    All drafts are enumerated. The rows p and q are those after any prefix; a round that ends early
    is continued by draws from p. The law has the shape ``[V] * (N + 1)``.
    """
    n, size = q.shape
    law, accepted = np.zeros([size] * (n + 1)), np.zeros(n + 1)
    for x in product(range(size), repeat=n):
        chance = float(np.prod([q[i, token] for i, token in enumerate(x)]))
        if chance == 0:
            continue
        passing, sources = kernel(form, p, q, x)
        for flags in product((False, True), repeat=n):
            weights = np.where(flags, passing, 1 - passing)
            count = accepted_drafts(form, flags)
            mass = sources[count]
            for row in p[count + 1 :]:
                mass = np.multiply.outer(mass, row)
            law[x[:count]] += chance * weights.prod() * mass
            accepted[count] += chance * weights.prod()
    return law, accepted
