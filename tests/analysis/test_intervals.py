import warnings

import numpy as np
import pytest

from specbench.analysis.statistics.intervals import (
    FEWEST,
    LARGE,
    RESAMPLES,
    bootstrap,
    estimate,
    limits,
    mean_interval,
    paired_interval,
    paired_ratio,
    ratio,
    ratio_interval,
)
from specbench.analysis.statistics.proportions import paired_difference, proportion_interval


def test_repeats_count_as_one_prompt_and_a_pooled_ratio_weighs_by_denominators():
    values = np.random.default_rng(2).normal(size=30)
    repeated, prompts = np.repeat(values, 5), np.repeat(np.arange(30), 5)
    once = mean_interval(values, np.arange(30))
    clustered = mean_interval(repeated, prompts)
    careless = mean_interval(repeated, np.arange(150))
    assert clustered[:4] == pytest.approx(once[:4])
    assert clustered.n == 30
    narrowing = (careless.high - careless.low) / (clustered.high - clustered.low)
    assert narrowing == pytest.approx(1 / np.sqrt(5), rel=0.15)
    accepted, proposed = [1.0, 9.0], [10.0, 10.0 * 3]
    assert ratio_interval(accepted, proposed, ["a", "b"]).value == pytest.approx(10 / 40)
    assert mean_interval(np.divide(accepted, proposed), ["a", "b"]).value == pytest.approx(0.2)


def test_pairing_cancels_differences_between_prompts_and_uses_only_shared_ones():
    rng = np.random.default_rng(6)
    tokens = rng.uniform(10, 200, size=40)
    slow = tokens * rng.uniform(0.5, 2.0, size=40)  # some prompts are slow for every method
    prompts = np.arange(40)
    fast, base = np.column_stack([tokens, slow / 2]), np.column_stack([tokens, slow])
    paired = paired_interval((fast, prompts), (base, prompts), paired_ratio)
    assert paired[:3] == pytest.approx((2.0, 2.0, 2.0))
    alone = ratio_interval(tokens, slow / 2, prompts)
    assert alone.high / alone.low > 1.2
    mine = [[10.0, 1.0], [30.0, 1.0], [99.0, 1.0]]
    base = [[10.0, 2.0], [10.0, 2.0], [1.0, 50.0]]
    both = (mine, ["a", "b", "only mine"]), (base, ["b", "a", "only base"])
    interval = paired_interval(*both, paired_ratio)
    assert interval.value == pytest.approx((40 / 2) / (20 / 4))
    assert interval.n == 2


def test_undefined_ratios_are_silent_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(ratio(np.array([1.0, 0.0])))
        values = ratio(np.array([[2.0, 2.0], [1.0, 0.0], [1.0, 2.0], [3.0, 2.0]]))
        for n in (FEWEST, LARGE):
            interval = estimate(values, n)
            assert 0.5 <= interval.low < interval.high <= 1.5  # over the values that exist
        assert np.isnan(estimate(np.array([1.0, np.nan]), LARGE)[1:3]).all()


def false_differences(n):
    """Shares of 1000 samples of n prompts in which a difference and a ratio exclude the truth.

    Both sides have the same law with long tails, as times and edit similarities have.
    """
    totals = bootstrap(np.random.default_rng(n).lognormal(sigma=0.7, size=(n, 1000, 2)))
    for values, log in (
        ((totals[..., 0] - totals[..., 1]) / n, False),
        (totals[..., 0] / totals[..., 1], True),
    ):
        low, high = limits(values[0], values[1:], n, log=log)
        yield np.mean((low > log) | (high < log))  # the ratio is 1, the difference 0


@pytest.mark.parametrize("n", [10, 20, 50])
def test_small_samples_name_few_false_differences(n):
    assert max(false_differences(n)) <= 0.07


def test_limits_of_large_samples_are_percentiles_and_a_ratio_has_those_of_its_inverse():
    values = bootstrap(np.random.default_rng(3).normal(size=(LARGE, 1)))[:, 0]
    expected = np.percentile(values[1:], [2.5, 97.5])
    assert limits(values[0], values[1:], LARGE) == pytest.approx(expected)
    assert limits(values[0], values[1:], LARGE - 1) != pytest.approx(expected, rel=1e-3)
    assert mean_interval(np.array([1.0] * 11 + [0.9]), range(12)).high == 1
    sums = np.random.default_rng(7).uniform(1, 3, size=(12, 4))
    one, other = (
        paired_interval((a, range(12)), (b, range(12)), paired_ratio, log=True)
        for a, b in ((sums[:, :2], sums[:, 2:]), (sums[:, 2:], sums[:, :2]))
    )
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))


def test_few_prompts_have_no_interval_and_blank_samples_are_ignored():
    """With repeats, too: the prompts count."""
    for n in (1, FEWEST - 1, FEWEST):
        for values in ((0.0, 1.0), (0.5, 3.5)):
            samples, prompts = np.tile(values, n), np.repeat(np.arange(n), 2)
            for interval, value in (
                (mean_interval(samples, prompts), np.mean(values)),
                (proportion_interval(samples / 3.5, prompts), np.mean(values) / 3.5),
                (paired_difference((samples, prompts), (samples[::-1], prompts)), 0),
            ):
                assert (interval.value, interval.n) == (pytest.approx(value), n)
                assert np.isnan([interval.low, interval.high]).all() == (n < FEWEST)
    interval = ratio_interval([1.0, np.nan, 0.0], [2.0, 2.0, 0.0], ["a", "b", "c"])
    assert (interval.value, interval.n) == (0.5, 1)
    nothing = mean_interval([np.nan, np.nan], ["a", "b"])
    assert np.isnan(nothing[:3]).all()
    assert nothing.n == 0


def test_resamples_draw_as_many_prompts_for_all_quantities_together():
    sums = np.random.default_rng(4).normal(size=(12, 3, 2))
    sums[:, 2] = 1
    totals = bootstrap(sums)
    np.testing.assert_allclose(totals[0], sums.sum(axis=0))  # the data itself
    assert totals.shape == (1 + RESAMPLES, 3, 2)
    np.testing.assert_array_equal(totals[1:, 2], np.full((RESAMPLES, 2), 12.0))
    np.testing.assert_allclose(totals[1:, 1, 0], bootstrap(sums[:, 1, :1])[1:, 0])
