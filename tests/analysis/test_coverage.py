"""Intervals of proportions and of their paired differences cover the truth in 95 % of cases.

The tests require 92 to 98 %. Counts are integers, so no interval can be that exact if the expected
counts are small; comments mark these cases.
"""

from math import comb

import numpy as np
import pytest
from scipy.stats import ttest_rel

from specbench.analysis.statistics.proportions import (
    paired_difference,
    proportion_interval,
    score_limits,
)
from tasks.measure.levels import missed

TRUTHS = (0.5, 0.7, 0.9, 0.95, 0.986, 0.994)
SIZES = (20, 100, 500)


def chances(n, truth):
    return np.array([comb(n, k) * truth**k * (1 - truth) ** (n - k) for k in range(n + 1)])


def exact_coverage(find, n, truths):
    """Coverage of each truth by the interval of ``n`` prompts with one sample each, [truths]."""
    likely = np.array([chances(n, truth) for truth in truths])
    held = np.zeros_like(likely)
    for k in np.flatnonzero(likely.max(axis=0) > 1e-6):
        bounds = find((np.arange(n) < k).astype(float), np.arange(n))
        held[:, k] = [bounds.low <= truth <= bounds.high for truth in truths]
    return (likely * held).sum(axis=1)


@pytest.mark.parametrize("n", SIZES)
def test_a_proportion_is_covered(n):
    coverage = dict(zip(TRUTHS, exact_coverage(proportion_interval, n, TRUTHS), strict=True))
    if n == 20:
        # At .994, covering 20 right answers or also 19 gives 88.7 or 99.4 %, and nothing between.
        assert coverage.pop(0.994) == pytest.approx(0.994**20, abs=1e-6)
        around = exact_coverage(proportion_interval, n, np.linspace(0.988, 1, 101))
        assert 0.92 < around.mean() < 0.98
    assert 0.92 < min(coverage.values()) <= max(coverage.values()) < 0.98


def drawn_prompts(rng, truth, alike, shape):
    """Probabilities of a right answer by prompt; ``alike`` is the correlation of repeats."""
    if alike in (0, 1):
        return np.full(shape, truth) if alike == 0 else (rng.random(shape) < truth).astype(float)
    mass = 1 / alike - 1
    return rng.beta(truth * mass, (1 - truth) * mass, shape)


@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("alike", [0.1, 0.3, 0.7])
def test_a_proportion_with_repeats_is_covered(n, alike):
    rng = np.random.default_rng(1)
    prompts = np.repeat(np.arange(n), 5)
    for truth in (0.5, 0.9, 0.95, 0.986):
        right = rng.binomial(5, drawn_prompts(rng, truth, alike, (600, n)))
        samples = (np.arange(5) < right[..., None]).reshape(600, -1)
        intervals = [proportion_interval(each, prompts) for each in samples]
        coverage = np.mean([low <= truth <= high for _, low, high, *_ in intervals])
        assert 0.92 < coverage < 0.99, truth


def pairs(rng, n, first, second, correlation):
    """Right answers of two methods, [2, n, 2500], and the expected number of differing prompts."""
    both = first * second + correlation * np.sqrt(first * (1 - first) * second * (1 - second))
    if both > min(first, second):
        return None
    drawn = rng.random((n, 2500))
    mine = drawn < first
    theirs = (drawn < both) | ((drawn >= first) & (drawn < first + second - both))
    return np.array([mine, theirs], dtype=float), n * (first + second - 2 * both)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("correlation", [0, 0.5, 0.9])
def test_a_paired_difference_of_proportions_is_covered(n, correlation):
    rng = np.random.default_rng(2)
    tried = 0
    for first in TRUTHS:
        for second in (first, first - 0.03, first - 0.1):
            if (drawn := pairs(rng, n, first, second, correlation)) is None:
                continue
            (mine, theirs), parted = drawn
            low, high = score_limits(mine - theirs)
            coverage = np.mean((low <= first - second) & (high >= first - second))
            tried += 1
            assert coverage > 0.92, (first, second)
            # With fewer, there are nearly always none or one, which fits every truth near 0.
            assert coverage < 0.98 or parted < 3, (first, second)
    assert tried >= 6


@pytest.mark.parametrize(("n", "repeats"), [(20, 8), (60, 5)])
@pytest.mark.parametrize("alike", [0.1, 0.7])
@pytest.mark.parametrize("truth", [0.6, 0.9])
def test_a_paired_difference_with_repeats_is_covered(n, repeats, alike, truth):
    """Prompts are equally hard for both methods; one is right less often by .03."""
    rng, prompts = np.random.default_rng(3), np.repeat(np.arange(n), repeats)
    misses = 0
    for _ in range(150):
        chance = np.repeat(drawn_prompts(rng, truth, alike, n), repeats)
        mine, theirs = rng.random((2, n * repeats)) < [chance, chance * (1 - 0.03 / truth)]
        difference = paired_difference((mine, prompts), (theirs, prompts))
        misses += not difference.low <= 0.03 <= difference.high
    assert misses <= 15  # 7.5 are nominal


def test_repeats_do_not_make_a_rare_failure_look_excluded():
    """A method always fails on 10 %; counted by texts, the loss was called smaller in 18 %."""
    rng, prompts = np.random.default_rng(4), np.repeat(np.arange(30), 5)
    within = 0
    for _ in range(300):
        fails = np.repeat(rng.random(30) < 0.1, 5)
        mine, theirs = (rng.random((2, 150)) > 0.02) & [~fails, np.ones(150, bool)]
        within += paired_difference((mine, prompts), (theirs, prompts)).low > -0.1 * 0.98
    assert within <= 12


def test_a_paired_difference_is_tangos_and_repeats_that_always_agree_count_once():
    """12 prompts won, 2 lost and 36 equal (Newcombe, 1998, table II): .0611 to .3447."""
    mine, theirs = np.arange(50) < 12, (np.arange(50) >= 12) & (np.arange(50) < 14)
    difference = paired_difference((mine, range(50)), (theirs, range(50)))
    assert difference[:4] == pytest.approx((0.2, 0.0611, 0.3447, 50), abs=5e-5)
    other = paired_difference((theirs, range(50)), (mine, range(50)))
    assert other[:4] == pytest.approx((-0.2, -0.3447, -0.0611, 50), abs=5e-5)
    difference = paired_difference((np.ones(100), range(100)), (np.ones(100), range(100)))
    assert (difference.low, difference.high) == pytest.approx(
        (-3.8415 / 103.8415, 3.8415 / 103.8415), rel=1e-4
    )
    twice = np.arange(120) > 0, np.repeat(np.arange(60), 2)  # all but one of 120 texts are right
    assert paired_difference((np.zeros(60), range(60)), twice).low == -1
    right = np.arange(40) % 5 > 0
    prompts = np.repeat(np.arange(40), 3)
    once, thrice = (
        (
            proportion_interval(values, labels),
            paired_difference((values, labels), (~values, labels)),
        )
        for values, labels in ((right, np.arange(40)), (np.repeat(right, 3), prompts))
    )
    for repeated, expected in zip(thrice, once, strict=True):
        assert repeated[:4] == pytest.approx(expected[:4])


def test_a_prompt_with_more_texts_weighs_more_in_a_difference_too():
    prompts = np.minimum(np.arange(100), 70)  # the last prompt has 30 texts
    for mine in (prompts < 70, (prompts < 70) | (np.arange(100) == 99)):
        difference = paired_difference((mine, prompts), (np.ones(100), prompts))
        assert difference.value == pytest.approx(mine.mean() - 1) and difference.n == 71


def test_differences_of_other_scores_are_those_of_a_t_test_of_shared_prompts():
    rng = np.random.default_rng(5)
    mine, theirs = rng.random(60), rng.random(60)
    difference = paired_difference((mine, range(60)), (theirs, range(60)))
    expected = ttest_rel(mine, theirs)
    assert difference[1:3] == pytest.approx(expected.confidence_interval()[:2])
    assert difference.p == pytest.approx(expected.pvalue)
    # A method fails on 8 % of 50 prompts; Student's t alone misses in 9 % of draws.
    assert missed(50, 0.08, 1000) <= 6
    assert missed(100, 0.04, 1000) <= 6
    mine = [*np.ones(12), 0.0, np.nan]
    theirs = [*np.zeros(12), 1.0, 1.0]
    names = [f"{i}" for i in range(12)]
    difference = paired_difference((mine, [*names, "mine", "no"]), (theirs, [*names, "base", "no"]))
    assert (difference.value, difference.n) == (1, 12)
