import warnings

import numpy as np
import pytest

from specbench.analysis.intervals import (
    FEWEST,
    RESAMPLES,
    bootstrap,
    mean_interval,
    paired_difference,
    paired_interval,
    paired_ratio,
    percentiles,
    proportion_interval,
    ratio,
    ratio_interval,
    resample,
)


def test_intervals_have_their_nominal_coverage():
    rng = np.random.default_rng(5)
    prompts = np.arange(60)
    found = [mean_interval(rng.exponential(size=60), prompts) for _ in range(400)]
    coverage = np.mean([one.low <= 1.0 <= one.high for one in found])
    assert 0.91 < coverage < 0.97  # 95 % nominal; two standard errors are 2 points


def test_repeats_of_a_prompt_count_as_one_prompt():
    values = np.random.default_rng(2).normal(size=30)
    repeated, prompts = np.repeat(values, 5), np.repeat(np.arange(30), 5)
    once = mean_interval(values, np.arange(30))
    clustered = mean_interval(repeated, prompts)
    careless = mean_interval(repeated, np.arange(150))
    assert clustered == pytest.approx(once)
    assert clustered.n == 30
    narrowing = (careless.high - careless.low) / (clustered.high - clustered.low)
    assert narrowing == pytest.approx(1 / np.sqrt(5), rel=0.15)


def test_pooled_ratio_weighs_samples_by_their_denominator():
    accepted, proposed = [1.0, 9.0], [10.0, 10.0 * 3]
    assert ratio_interval(accepted, proposed, ["a", "b"]).value == pytest.approx(10 / 40)
    assert mean_interval(np.divide(accepted, proposed), ["a", "b"]).value == pytest.approx(0.2)


def test_pairing_cancels_differences_between_prompts():
    rng = np.random.default_rng(6)
    tokens = rng.uniform(10, 200, size=40)
    slow = tokens * rng.uniform(0.5, 2.0, size=40)  # some prompts are slow for every method
    prompts = np.arange(40)
    fast, base = np.column_stack([tokens, slow / 2]), np.column_stack([tokens, slow])
    paired = paired_interval(fast, prompts, base, prompts, paired_ratio)
    assert paired[:3] == pytest.approx((2.0, 2.0, 2.0))
    alone = ratio_interval(tokens, slow / 2, prompts)
    assert alone.high / alone.low > 1.2


def test_paired_ratio_uses_only_shared_prompts():
    mine = [[10.0, 1.0], [30.0, 1.0], [99.0, 1.0]]
    base = [[10.0, 2.0], [10.0, 2.0], [1.0, 50.0]]
    found = paired_interval(
        *(mine, ["a", "b", "only mine"], base, ["b", "a", "only base"]), paired_ratio
    )
    assert found.value == pytest.approx((40 / 2) / (20 / 4))
    assert found.n == 2


def test_undefined_ratios_are_silent_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(ratio(np.array([1.0, 0.0])))
        low, high = percentiles(ratio(np.array([[1.0, 0.0], [1.0, 2.0], [3.0, 2.0]])))
    assert 0.5 < low < high < 1.5  # over the values that exist
    assert np.isnan(percentiles(np.array([np.nan]))).all()


def test_few_prompts_have_a_value_and_no_interval():
    """With repeats, too: the prompts count."""
    for n in (1, FEWEST - 1, FEWEST):
        for values in ((0.0, 1.0), (0.5, 3.5)):
            samples, prompts = np.tile(values, n), np.repeat(np.arange(n), 2)
            for found, value in (
                (mean_interval(samples, prompts), np.mean(values)),
                (proportion_interval(samples / 3.5, prompts), np.mean(values) / 3.5),
                (paired_difference(samples, prompts, samples[::-1], prompts), 0),
            ):
                assert (found.value, found.n) == (pytest.approx(value), n)
                assert np.isnan([found.low, found.high]).all() == (n < FEWEST)


def test_blank_samples_and_zero_denominators_are_ignored():
    found = ratio_interval([1.0, np.nan, 0.0], [2.0, 2.0, 0.0], ["a", "b", "c"])
    assert (found.value, found.n) == (0.5, 1)
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
    np.testing.assert_allclose(totals[1:, 1, 0], resample(sums[:, 1, :1])[:, 0])
