"""The closed forms against enumeration, each beside a formula that is nearly right."""

from itertools import product

import numpy as np
import pytest

from specbench.theory.formulas import (
    accepted_length,
    emitted_law,
    front_gap,
    iid_accepted_length,
    iid_tokens_per_round,
    memory_bound_speedup,
    static_acceptance,
    total_variation,
)

from .blocks import TOKENS, N, Pair, Prefix, pair, rounds, static

SEEDS = range(4)
WEIGHTS = (0.3, 0.7, 1.0)
Case = tuple[Pair, float]
cases = pytest.mark.parametrize(
    ("models", "weight"), [(pair(seed), weight) for seed in SEEDS for weight in WEIGHTS]
)


def expected_at(models: Pair, weight: float, prefix: Prefix) -> float:
    return float(static_acceptance(models.p[prefix], models.q[prefix], weight))


def enumerated_length(models: Pair, weight: float) -> float:
    return sum(o.chance * o.accepted for o in rounds(models, static(models, weight)))


def by_place(models: Pair, weight: float) -> list[float]:
    """The mean acceptance over the contexts in which each place of a block is judged."""
    judged, expected = np.zeros(N), np.zeros(N)
    for outcome in rounds(models, static(models, weight)):
        for place in range(len(outcome.drafts)):
            judged[place] += outcome.chance
            context = outcome.drafts[:place]
            expected[place] += outcome.chance * expected_at(models, weight, context)
    return list(expected / judged)


@cases
def test_acceptance_is_that_of_the_maximal_coupling(models: Pair, weight: float) -> None:
    accept = static(models, weight)
    for prefix, q in models.q.items():
        assert expected_at(models, weight, prefix) == pytest.approx((q * accept(prefix)).sum())
    swapped = static_acceptance(models.p[()], models.q[()], 1 - weight)
    assert weight == 0.5 or swapped != pytest.approx(expected_at(models, weight, ()))


@cases
def test_accepted_length_is_exact_for_dependent_positions(models: Pair, weight: float) -> None:
    exact = enumerated_length(models, weight)
    assert accepted_length(by_place(models, weight)) == pytest.approx(exact)
    # The paper's form of it: sum over k and over blocks of the product of min(q, v).
    accept = static(models, weight)
    summed = sum(
        np.prod([models.q[x[:i]][x[i]] * accept(x[:i])[x[i]] for i in range(k)])
        for k in range(1, N + 1)
        for x in product(range(TOKENS), repeat=k)
    )
    assert summed == pytest.approx(exact)


@cases
def test_a_block_drawn_from_q_is_an_unbiased_estimate(models: Pair, weight: float) -> None:
    accept = static(models, weight)
    mean = wrong = 0.0
    for x in product(range(TOKENS), repeat=N):
        drawn = np.prod([models.q[x[:i]][x[i]] for i in range(N)])
        mean += drawn * accepted_length([accept(x[:i])[x[i]] for i in range(N)])
        wrong += drawn * accepted_length([expected_at(models, weight, x[:i]) for i in range(N)])
    exact = enumerated_length(models, weight)
    assert mean == pytest.approx(exact)
    assert wrong != pytest.approx(exact, rel=1e-4)  # 1 - w TV along the draft's own blocks


@cases
def test_what_is_expected_where_judged_adds_up_to_what_is_accepted(
    models: Pair, weight: float
) -> None:
    exact = enumerated_length(models, weight)
    summed = everywhere = 0.0
    for outcome in rounds(models, static(models, weight)):
        contexts = [outcome.drafts[:place] for place in range(len(outcome.drafts))]
        summed += outcome.chance * sum(expected_at(models, weight, at) for at in contexts)
        kept = contexts[: outcome.accepted]  # without the position of the rejection
        everywhere += outcome.chance * sum(expected_at(models, weight, at) for at in kept)
    assert summed == pytest.approx(exact)
    assert everywhere != pytest.approx(exact, rel=1e-2)


def test_the_iid_formula_is_the_exact_one_of_equal_positions_and_of_no_others() -> None:
    for a, n in product((0.0, 0.3, 0.999999, 1.0), (1, 5)):
        assert iid_accepted_length(a, n) == pytest.approx(accepted_length([a] * n))
    assert iid_tokens_per_round(1.0, 5) == 6
    assert iid_tokens_per_round(0.5, 3) == pytest.approx((1 - 0.5**4) / (1 - 0.5))
    assert iid_accepted_length(0.6, 2) != pytest.approx(accepted_length([0.4, 0.8]))
    np.testing.assert_allclose(iid_tokens_per_round([0.0, 1.0], 2), [1, 3])


def test_leading_axes_are_free() -> None:
    acceptance = np.random.default_rng(0).random((2, 4, N))
    lengths = accepted_length(acceptance)
    assert lengths.shape == (2, 4)
    assert lengths[1, 2] == pytest.approx(accepted_length(acceptance[1, 2]))


def test_speedup_by_the_clock() -> None:
    # 10 rounds of 4 drafts at 0.25 s and a pass of 1 s bring 30 tokens, at 1 s each before.
    assert memory_bound_speedup(3, 4, 0.25) == pytest.approx(30 / (10 * (4 * 0.25 + 1)))
    assert memory_bound_speedup(1, 0, 0.25) == 1  # nothing drafted, nothing gained


def every_law(p: np.ndarray, q: np.ndarray, accept: np.ndarray, residual: np.ndarray) -> np.ndarray:
    law = np.zeros_like(p)
    for x in range(len(p)):
        law[x] += q[x] * accept[x]
        for y in range(len(p)):
            law[y] += q[x] * (1 - accept[x]) * residual[y]
    return law


def positive(rows: np.ndarray) -> np.ndarray:
    rows = np.maximum(rows, 0)
    return rows / rows.sum()


@pytest.mark.parametrize("seed", range(6))
def test_the_front_gap_is_0_on_the_front_and_above_it_elsewhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q, other = rng.dirichlet(np.full(5, 0.7), 3)

    def gap(accept: np.ndarray, residual: np.ndarray) -> float:
        law = emitted_law(q, accept, residual)
        np.testing.assert_allclose(law, every_law(p, q, accept, residual))
        return float(front_gap(p, q, law, (q * accept).sum()))

    for w in (0.2, 0.7, 1.0):
        v = w * p + (1 - w) * q
        assert gap(np.minimum(1, v / q), positive(p - q)) == pytest.approx(0, abs=1e-12)
    for lenience in (0.3, 0.8):
        kept = np.minimum(1, p / (lenience * q))
        assert gap(kept, positive(p - q)) == pytest.approx(0, abs=1e-12)
    # Lossless in vain: all is rejected. And bias that buys nothing: accepted as by sd.
    assert gap(np.zeros(5), p) == pytest.approx(1 - total_variation(p, q))
    assert gap(np.minimum(1, p / q), other) > 1e-3
    for _ in range(20):
        assert gap(rng.random(5), rng.dirichlet(np.ones(5))) > 0
