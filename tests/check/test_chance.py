"""Tests of draws: uniform under the right law, refused under a wrong one, and no false alarms."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from specbench.check.chance import (
    LEAST_EXPECTED,
    Counts,
    Stream,
    _cells,
    smallest_share,
    tail,
    uniform,
)

K, V = 3000, 12


def laws(seed: int, size: int = K) -> tuple[Tensor, Tensor, Tensor]:
    """Laws, wrong laws and a draw from each of the former."""
    generator = torch.Generator().manual_seed(seed)
    law, wrong = (torch.rand(size, V, generator=generator, dtype=torch.float64) ** 3 for _ in "ab")
    law, wrong = (rows / rows.sum(-1, keepdim=True) for rows in (law, wrong))
    return law, wrong, torch.multinomial(law, 1, generator=generator)[:, 0]


def test_draws_of_a_law_are_uniform_by_it() -> None:
    law, wrong, seen = laws(0)
    chance = torch.rand(K, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    numbers = uniform(law, wrong, seen, chance).sort().values
    # Kolmogorov and Smirnov: beyond 1.63 / sqrt(n) once in a hundred samples.
    grid = (torch.arange(K) + 0.5) / K
    assert float((numbers - grid).abs().max()) < 1.63 / math.sqrt(K)


def test_a_draw_that_cannot_be_comes_last() -> None:
    law = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    found = uniform(law, torch.full_like(law, 1 / 3), torch.tensor([2]), torch.tensor([0.5]))
    assert float(found) == 1


def test_a_stream_passes_its_law_and_refuses_a_wrong_one() -> None:
    law, wrong, seen = laws(1)
    for given, passes in ((law, True), (wrong, False)):
        stream = Stream(seed=0)
        for part in range(0, K, 700):  # in parts of any size
            rows = slice(part, part + 700)
            stream.add(given[rows], (wrong if passes else law)[rows], seen[rows])
        outcome = stream.outcome(1e-6)
        assert outcome.draws == K
        assert (outcome.p_value > 1e-3) == passes
        assert outcome.p_value > 1e-3 or outcome.p_value < 1e-9
        assert outcome.control < 1e-9


def test_no_power_is_told() -> None:
    law, _, seen = laws(2)
    stream = Stream(seed=0)
    stream.add(law, law, seen)
    outcome = stream.outcome(1e-6)
    assert outcome.p_value > 1e-3
    assert outcome.control > 1e-6
    few = Stream(seed=0)
    few.add(law[:5], law[:5].flip(-1), seen[:5])
    assert few.outcome(1e-6) == (5, 1.0, 1.0, None)


def test_the_smallest_share_that_is_seen_is_seen() -> None:
    """Where that part of the draws is wrong, nearly all samples are refused; of a third, few."""
    law, wrong, seen = laws(3)
    generator = torch.Generator().manual_seed(4)
    stream = Stream(seed=0)
    stream.add(law, wrong, seen)
    share = stream.outcome(1e-6).share
    assert share is not None and 0.02 < share < 0.5

    def refused(part: float) -> int:
        count = 0
        for seed in range(20):
            false = torch.rand(K, generator=generator) < part
            mixed = torch.where(false[:, None], wrong, law)
            drawn = torch.multinomial(mixed, 1, generator=generator)[:, 0]
            tried = Stream(seed)
            tried.add(law, wrong, drawn)
            count += tried.outcome(1e-6).p_value < 1e-6
        return count

    assert refused(1.2 * share) >= 18
    assert refused(share / 3) <= 2


@pytest.mark.parametrize("right", [True, False])
def test_counts_of_the_next_token(right: bool) -> None:
    law, wrong, _ = laws(5, size=3)
    counts = Counts(seed=0)
    generator = torch.Generator().manual_seed(6)
    for ours, theirs in zip(law, wrong, strict=True):
        source = ours if right else theirs
        counts.add(ours, theirs, torch.multinomial(source, 400, True, generator=generator))
    outcome = counts.outcome(1e-6)
    assert outcome.draws == 1200
    assert (outcome.p_value > 1e-3) if right else (outcome.p_value < 1e-9)
    assert outcome.control < 1e-9


def test_cells_of_rare_tokens_are_filled() -> None:
    """Of a law without likely tokens, and of one with a few."""
    flat = np.full(1000, 0.2)
    steep = 400 * 0.5 ** np.arange(1, 40)
    for expected in (flat, steep, np.r_[steep, flat]):
        cells = _cells(expected)
        filled = np.bincount(cells, expected)
        assert filled.min() >= LEAST_EXPECTED
        assert len(filled) > 4
    assert set(_cells(np.array([95.0, 3.0, 2.0]))) == {0}  # the rest is too rare to be a cell


def test_a_certain_token_tests_nothing() -> None:
    law = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    counts = Counts(seed=0)
    counts.add(law, law, torch.zeros(100, dtype=torch.long))
    assert counts.outcome(1e-6) == (0, 1.0, 1.0, None)


def test_tails_are_those_of_chi_square() -> None:
    assert tail(3.841, 1) == pytest.approx(0.05, abs=1e-4)
    assert tail(30.578, 15) == pytest.approx(0.01, abs=1e-4)
    assert smallest_share(10.0, 15, 1e-6) is None  # the control is not even unusual
