"""Tests of temperature and filters: uniform without a fault, and the power that they name."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest

from specbench.validation.draws import (
    MIN_P,
    TOP_K,
    TOP_P,
    FilteredTails,
    TemperatureScore,
    lower_tails,
)

SIZE, ALPHA = 400, 4e-4
LAWS = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(SIZE, 0.05), 16))


def judge(
    test: TemperatureScore | FilteredTails,
    count: int,
    seed: int,
    heat: float = 1.0,
    top: int = SIZE,
) -> dict[str, Any]:
    """Draw from the laws at another temperature, or from their likeliest tokens; return facts."""
    generator = torch.Generator().manual_seed(seed)
    laws = LAWS.repeat(count // len(LAWS), 1)
    drawn = LAWS ** (1 / heat)
    drawn = torch.where(drawn < drawn.sort(descending=True).values[:, [top - 1]], 0, drawn)
    tokens = torch.multinomial(drawn, count // len(LAWS), True, generator=generator)
    test.add(laws, tokens.T.flatten())
    return test.judge(ALPHA).facts


def score(count: int, seed: int, heat: float = 1.0) -> dict[str, Any]:
    return judge(TemperatureScore(1.0), count, seed, heat)


def test_p_values_of_the_temperature_are_uniform() -> None:
    p_values = [score(320, seed)["p_value"] for seed in range(200)]
    assert kstest(p_values, "uniform").pvalue > 1e-3


def test_false_alarms_of_filters_are_rare() -> None:
    p_values = [judge(FilteredTails(), 320, seed)["p_value"] for seed in range(100)]
    assert min(p_values) > ALPHA
    assert np.mean(np.array(p_values) < 0.1) < 0.2


@pytest.mark.parametrize("sign", [1, -1])
def test_the_temperature_that_would_be_seen_is_seen(sign: int) -> None:
    visible = score(1600, 0)["visible"]
    scores = [score(1600, seed, (1 + visible) ** sign) for seed in range(40)]
    assert sum(facts["p_value"] < ALPHA for facts in scores) >= 36
    assert np.mean([facts["estimate"] for facts in scores]) == pytest.approx(
        (1 + visible) ** sign - 1, rel=0.3
    )


def test_the_filters_that_would_be_seen_are_seen() -> None:
    visible = judge(FilteredTails(), 1600, 0)["visible"]
    assert {TOP_K, TOP_P, MIN_P} == visible.keys() and visible[TOP_K] >= 20
    facts = judge(FilteredTails(), 1600, 1, top=int(visible[TOP_K]))
    assert facts["p_value"] < ALPHA and facts["seen"] == 0 and facts["expected"] > 5


def test_lower_tails_are_those_of_the_binomial() -> None:
    masses = np.array([np.full(1000, 0.004), np.full(1000, 0.2)])
    few, many = lower_tails(masses, np.array([1, 160]))
    assert few == pytest.approx(binom.cdf(1, 1000, 0.004))
    assert binom.cdf(160, 1000, 0.2) <= many < 1.5 * binom.cdf(160, 1000, 0.2)
