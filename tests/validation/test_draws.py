"""Tests of draws: uniform under the correct law, rejected under a wrong one, no false alarms."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest
from torch import Tensor

from specbench.validation import draws
from specbench.validation.findings import FAILED, WEAK

ALPHA = 1e-6
K, V = 3000, 12
NOTHING = {"draws": 0, "p_value": 1.0, "control": 1.0, "share": None, "alpha": ALPHA}


def laws(seed: int, size: int = K) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    law, wrong = torch.rand(2, size, V, generator=generator, dtype=torch.float64) ** 3
    law, wrong = (rows / rows.sum(-1, keepdim=True) for rows in (law, wrong))
    return law, wrong, torch.multinomial(law, 1, generator=generator)[:, 0]


def test_draws_of_a_law_are_uniform_by_it_and_one_without_mass_comes_last():
    law, wrong, seen = laws(0)
    uniforms = torch.rand(K, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    numbers = draws.uniform(law, wrong, seen, uniforms).sort().values
    # Kolmogorov-Smirnov: the 1 % critical value is 1.63 / sqrt(n).
    grid = (torch.arange(K) + 0.5) / K
    assert float((numbers - grid).abs().max()) < 1.63 / math.sqrt(K)
    law = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64)
    number = draws.uniform(law, torch.full_like(law, 1 / 3), torch.tensor([2]), torch.tensor([0.5]))
    assert float(number) == 1


def test_a_stream_passes_its_law_and_refuses_a_wrong_one():
    law, wrong, seen = laws(1)
    p_values = []
    for given, other in ((law, wrong), (wrong, law)):
        stream = draws.Stream(seed=0)
        for rows in torch.arange(K).split(700):  # in parts of different sizes
            stream.add(given[rows], other[rows], seen[rows])
        facts = stream.judge(ALPHA).facts
        assert facts["draws"] == K and facts["control"] < 1e-9
        p_values.append(facts["p_value"])
    assert p_values[0] > 1e-3 > 1e-9 > p_values[1]


def test_without_power_the_control_passes():
    law, _, seen = laws(2)
    stream, few = draws.Stream(seed=0), draws.Stream(seed=0)
    stream.add(law, law, seen)
    verdict, sentence, facts = stream.judge(ALPHA)
    assert verdict == WEAK and sentence.endswith(draws.NO_POWER)
    assert facts["p_value"] > 1e-3 and facts["control"] > ALPHA
    few.add(law[:5], law[:5].flip(-1), seen[:5])
    assert few.judge(ALPHA).facts == {**NOTHING, "draws": 5}
    assert draws.Stream(seed=0).judge(ALPHA).facts == NOTHING


def test_the_smallest_share_is_detected_and_a_third_of_it_is_not():
    law, wrong, seen = laws(3)
    generator = torch.Generator().manual_seed(4)
    stream = draws.Stream(seed=0)
    stream.add(law, wrong, seen)
    share = stream.judge(ALPHA).facts["share"]
    assert share is not None and 0.02 < share < 0.5

    def refused(part):
        count = 0
        for seed in range(20):
            false = torch.rand(K, generator=generator) < part
            mixed = torch.where(false[:, None], wrong, law)
            tried = draws.Stream(seed)
            tried.add(law, wrong, torch.multinomial(mixed, 1, generator=generator)[:, 0])
            count += tried.judge(ALPHA).verdict == FAILED
        return count

    assert refused(1.2 * share) >= 18 and refused(share / 3) <= 2
    assert draws.smallest_share(10.0, 15, ALPHA) is None  # the control has no excess


@pytest.mark.parametrize("right", [True, False])
def test_counts_of_the_next_token(right):
    law, wrong, _ = laws(5, size=3)
    counts = draws.Counts(seed=0)
    generator = torch.Generator().manual_seed(6)
    for ours, theirs in zip(law, wrong, strict=True):
        source = ours if right else theirs
        counts.add(ours, theirs, torch.multinomial(source, 400, True, generator=generator))
    facts = counts.judge(ALPHA).facts
    assert facts["draws"] == 1200
    assert (facts["p_value"] > 1e-3) if right else (facts["p_value"] < 1e-9)
    assert facts["control"] < 1e-9
    certain, counts = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), draws.Counts(seed=0)
    counts.add(certain, certain, torch.zeros(100, dtype=torch.long))
    assert counts.judge(ALPHA).facts == NOTHING


def test_cells_of_rare_tokens_are_filled():
    """For laws without common tokens, and with a few."""
    flat = np.full(1000, 0.2)
    steep = 400 * 0.5 ** np.arange(1, 40)
    for expected in (flat, steep, np.r_[steep, flat]):
        filled = np.bincount(draws.cells_of(expected), expected)
        assert filled.min() >= draws.MIN_EXPECTED and len(filled) > 4
    rest = np.array([95.0, 3.0, 2.0])  # too rare to be a cell
    assert set(draws.cells_of(rest)) == {0}
    assert draws.deviance([0, 20], 10) == pytest.approx(2 * 20 * math.log(2))


SIZE, LEVEL = 400, 4e-4
LAWS = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(SIZE, 0.05), 16))


def judge(test: Any, count: int, seed: int, heat: float = 1.0, top: int = SIZE) -> dict[str, Any]:
    """Draw from the laws at another temperature, or from their likeliest tokens; return facts."""
    generator = torch.Generator().manual_seed(seed)
    laws = LAWS.repeat(count // len(LAWS), 1)
    drawn = LAWS ** (1 / heat)
    drawn = torch.where(drawn < drawn.sort(descending=True).values[:, [top - 1]], 0, drawn)
    tokens = torch.multinomial(drawn, count // len(LAWS), True, generator=generator)
    test.add(laws, tokens.T.flatten())
    return test.judge(LEVEL).facts


def score(count: int, seed: int, heat: float = 1.0) -> dict[str, Any]:
    return judge(draws.TemperatureScore(1.0), count, seed, heat)


def test_p_values_of_the_temperature_are_uniform_and_false_alarms_of_filters_rare():
    p_values = [score(320, seed)["p_value"] for seed in range(200)]
    assert kstest(p_values, "uniform").pvalue > 1e-3
    p_values = [judge(draws.FilteredTails(), 320, seed)["p_value"] for seed in range(100)]
    assert min(p_values) > LEVEL and np.mean(np.array(p_values) < 0.1) < 0.2


@pytest.mark.parametrize("sign", [1, -1])
def test_the_temperature_that_would_be_seen_is_seen(sign):
    visible = score(1600, 0)["visible"]
    scores = [score(1600, seed, (1 + visible) ** sign) for seed in range(40)]
    assert sum(facts["p_value"] < LEVEL for facts in scores) >= 36
    estimate = np.mean([facts["estimate"] for facts in scores])
    assert estimate == pytest.approx((1 + visible) ** sign - 1, rel=0.3)


def test_filters_that_would_be_seen_are_seen_by_lower_tails_of_the_binomial():
    visible = judge(draws.FilteredTails(), 1600, 0)["visible"]
    assert {draws.TOP_K, draws.TOP_P, draws.MIN_P} == visible.keys() and visible[draws.TOP_K] >= 20
    facts = judge(draws.FilteredTails(), 1600, 1, top=int(visible[draws.TOP_K]))
    assert facts["p_value"] < LEVEL and facts["seen"] == 0 and facts["expected"] > 5
    masses = np.array([np.full(1000, 0.004), np.full(1000, 0.2)])
    few, many = draws.lower_tails(masses, np.array([1, 160]))
    assert few == pytest.approx(binom.cdf(1, 1000, 0.004))
    assert binom.cdf(160, 1000, 0.2) <= many < 1.5 * binom.cdf(160, 1000, 0.2)
