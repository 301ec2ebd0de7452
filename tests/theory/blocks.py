"""Blocks of drafts by enumeration: every token drafted, every acceptance and rejection."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Prefix = tuple[int, ...]
TOKENS, N = 3, 3


class Pair(NamedTuple):
    """p and q after every prefix of a block; they have nothing to do with one another."""

    p: dict[Prefix, Array]
    q: dict[Prefix, Array]


def pair(seed: int) -> Pair:
    rng = np.random.default_rng(seed)
    prefixes = [prefix for n in range(N) for prefix in product(range(TOKENS), repeat=n)]
    # Some contexts are much harder than others, as in texts.
    drawn = {}, {}
    for prefix in prefixes:
        base, other = rng.dirichlet(np.ones(TOKENS), 2)
        ease = rng.random()
        drawn[0][prefix], drawn[1][prefix] = base, ease * base + (1 - ease) * other
    return Pair(*drawn)


class Outcome(NamedTuple):
    """One way in which a round may go."""

    chance: float
    drafts: Prefix  # those judged
    accepted: int


def rounds(models: Pair, accept: Callable[[Prefix], Array]) -> Iterator[Outcome]:
    """Every way in which a round may go; ``accept(prefix)[x]`` is the rule's probability."""

    def after(prefix: Prefix, chance: float) -> Iterator[Outcome]:
        if len(prefix) == N:
            yield Outcome(chance, prefix, N)
            return
        for x in range(TOKENS):
            drawn, kept = chance * models.q[prefix][x], accept(prefix)[x]
            yield Outcome(drawn * (1 - kept), (*prefix, x), len(prefix))
            yield from after((*prefix, x), drawn * kept)

    return after((), 1.0)


def static(models: Pair, weight: float) -> Callable[[Prefix], Array]:
    """The acceptance of a static ensemble."""

    def accept(prefix: Prefix) -> Array:
        p, q = models.p[prefix], models.q[prefix]
        return np.minimum(1, (weight * p + (1 - weight) * q) / q)

    return accept
