"""The closed forms against enumeration, each with a slightly wrong formula as a control."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from specbench.analysis.theory import (
    Floats,
    accepted_length,
    front_gap,
    total_variation,
)

Prefix = tuple[int, ...]
TOKENS, N = 3, 3


class Block(NamedTuple):
    """p, q and the acceptance of a static ensemble after every prefix of a block."""

    p: dict[Prefix, Floats]
    q: dict[Prefix, Floats]
    accept: dict[Prefix, Floats]

    def expected(self, prefix: Prefix) -> float:
        return float((self.q[prefix] * self.accept[prefix]).sum())


class Outcome(NamedTuple):
    """One possible course of a round."""

    chance: float
    drafts: Prefix  # the judged ones
    accepted: int


def block(seed: int, weight: float) -> Block:
    rng = np.random.default_rng(seed)
    found = Block({}, {}, {})
    for prefix in (x for n in range(N) for x in product(range(TOKENS), repeat=n)):
        p, other = rng.dirichlet(np.ones(TOKENS), 2)
        ease = rng.random()  # some contexts are much harder than others, as in real texts
        q = ease * p + (1 - ease) * other
        found.p[prefix], found.q[prefix] = p, q
        found.accept[prefix] = np.minimum(1, (weight * p + (1 - weight) * q) / q)
    return found


def rounds(models: Block, prefix: Prefix = (), chance: float = 1.0) -> Iterator[Outcome]:
    """All possible courses of a round."""
    if len(prefix) == N:
        yield Outcome(chance, prefix, N)
        return
    for x in range(TOKENS):
        drawn, kept = chance * models.q[prefix][x], models.accept[prefix][x]
        yield Outcome(drawn * (1 - kept), (*prefix, x), len(prefix))
        yield from rounds(models, (*prefix, x), drawn * kept)


def exact_length(models: Block) -> float:
    return sum(outcome.chance * outcome.accepted for outcome in rounds(models))


cases = pytest.mark.parametrize(
    ("models", "weight"), [(block(s, w), w) for s in range(3) for w in (0.3, 0.7, 1.0)]
)


@cases
def test_a_static_ensemble_accepts_1_less_w_tv(models: Block, weight: float) -> None:
    for prefix, q in models.q.items():
        distance = total_variation(models.p[prefix], q)
        assert models.expected(prefix) == pytest.approx(1 - weight * distance)


@cases
def test_accepted_length_is_exact_for_dependent_positions(models: Block, weight: float) -> None:
    judged, expected = np.zeros(N), np.zeros(N)
    for outcome in rounds(models):
        for place in range(len(outcome.drafts)):
            judged[place] += outcome.chance
            expected[place] += outcome.chance * models.expected(outcome.drafts[:place])
    assert accepted_length(expected / judged) == pytest.approx(exact_length(models))
    # Expectations where judged add up to the accepted drafts; without rejections they do not.
    assert expected.sum() == pytest.approx(exact_length(models))
    kept = sum(
        o.chance * sum(models.expected(o.drafts[:place]) for place in range(o.accepted))
        for o in rounds(models)
    )
    assert kept != pytest.approx(exact_length(models), rel=1e-2)


@cases
def test_a_block_drawn_from_q_is_an_unbiased_estimate(models: Block, weight: float) -> None:
    mean = wrong = 0.0
    for x in product(range(TOKENS), repeat=N):
        contexts = [x[:i] for i in range(N)]
        drawn = np.prod([models.q[at][x[i]] for i, at in enumerate(contexts)])
        accept = [models.accept[at][x[i]] for i, at in enumerate(contexts)]
        mean += drawn * accepted_length(accept)
        wrong += drawn * accepted_length([models.expected(at) for at in contexts])
    assert mean == pytest.approx(exact_length(models))
    assert wrong != pytest.approx(exact_length(models), rel=1e-4)  # 1 - w TV along drawn blocks


def test_leading_axes_are_free() -> None:
    lengths = accepted_length(np.random.default_rng(0).random((2, 4, N)))
    assert lengths.shape == (2, 4)


def positive(rows: Floats) -> Floats:
    rows = np.maximum(rows, 0)
    return rows / rows.sum()


@pytest.mark.parametrize("seed", range(3))
def test_the_front_gap_is_0_on_the_front_and_above_it_elsewhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q, other = rng.dirichlet(np.full(5, 0.7), 3)

    def gap(accept: Floats, residual: Floats) -> float:
        law = q * accept + (1 - (q * accept).sum()) * residual
        return float(front_gap(p, q, law, (q * accept).sum()))

    on_front: list[Callable[[float], Floats]] = [
        lambda w: np.minimum(1, (w * p + (1 - w) * q) / q),  # static
        lambda lenience: np.minimum(1, p / (lenience * q)),  # lossy
    ]
    for rule, value in product(on_front, (0.2, 0.7, 1.0)):
        assert gap(rule(value), positive(p - q)) == pytest.approx(0, abs=1e-12)
    # Useless lossless rule: all is rejected. Useless bias: accepts no more than sd.
    assert gap(np.zeros(5), p) == pytest.approx(1 - total_variation(p, q))
    assert gap(np.minimum(1, p / q), other) > 1e-3
    for _ in range(20):
        assert gap(rng.random(5), rng.dirichlet(np.ones(5))) > 0
