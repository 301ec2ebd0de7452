import warnings

import numpy as np
import pytest

from specbench.analysis.intervals import (
    FEWEST,
    RESAMPLES,
    bootstrap,
    cluster_sums,
    estimate,
    mean_interval,
    paired_difference,
    paired_ratio_interval,
    percentiles,
    proportion_interval,
    ratio,
    ratio_interval,
    resample,
)


def test_intervals_cover_the_true_mean_as_often_as_they_say():
    rng = np.random.default_rng(5)
    prompts = np.arange(60)
    found = [mean_interval(rng.exponential(size=60), prompts) for _ in range(400)]
    coverage = np.mean([one.low <= 1.0 <= one.high for one in found])
    assert 0.91 < coverage < 0.97  # 95 % nominal; two standard errors are 2 points


def test_interval_of_a_mean_has_the_width_of_theory():
    values = np.random.default_rng(0).normal(size=400)
    found = mean_interval(values, np.arange(400))
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


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


@pytest.mark.parametrize("n", [1, FEWEST - 1, FEWEST])
@pytest.mark.parametrize("values", [(0.0, 1.0), (0.5, 3.5)])
def test_few_prompts_have_a_value_and_no_interval(n, values):
    """Also with repeats: what counts is prompts."""
    samples, prompts = np.tile(values, n), np.repeat(np.arange(n), 2)
    base = samples[::-1]
    for found, value in (
        (mean_interval(samples, prompts), np.mean(values)),
        (proportion_interval(samples / 3.5, prompts), np.mean(values) / 3.5),
        (paired_difference(samples, prompts, base, prompts), 0),
    ):
        assert (found.value, found.n) == (pytest.approx(value), n)
        assert np.isnan([found.low, found.high]).all() == (n < FEWEST)


def test_no_samples_have_neither_value_nor_interval():
    found = mean_interval([np.nan, np.nan], ["a", "b"])
    assert found.n == 0
    assert np.isnan(found[:3]).all()


def test_blank_samples_and_zero_denominators_are_left_out():
    found = ratio_interval([1.0, np.nan, 0.0], [2.0, 2.0, 0.0], ["a", "b", "c"])
    assert (found.value, found.n) == (0.5, 1)


def test_equal_prompts_leave_no_doubt():
    assert mean_interval([0.7] * 10, range(10))[:3] == pytest.approx((0.7, 0.7, 0.7))


def test_same_samples_give_the_same_interval():
    values = np.random.default_rng(3).normal(size=20)
    assert mean_interval(values, range(20)) == mean_interval(values, range(20))


def test_order_of_samples_does_not_matter():
    values, order = np.random.default_rng(3).normal(size=20), np.arange(20)[::-1]
    assert mean_interval(values, range(20)) == pytest.approx(mean_interval(values[order], order))


def test_all_quantities_share_the_draws():
    sums = np.random.default_rng(4).normal(size=(12, 3, 2))
    together = resample(sums)
    assert together.shape == (RESAMPLES, 3, 2)
    np.testing.assert_allclose(together[:, 1, 0], resample(sums[:, 1, :1])[:, 0])


def test_each_resample_draws_as_many_prompts_as_there_are():
    np.testing.assert_array_equal(resample(np.ones((9, 1))), np.full((RESAMPLES, 1), 9.0))


def test_cluster_sums_by_hand():
    labels, sums = cluster_sums([[1, 10], [2, 20], [4, 40]], ["b", "a", "b"])
    assert list(labels) == ["a", "b"]
    np.testing.assert_array_equal(sums, [[2, 20], [5, 50]])


def test_pairing_cancels_what_prompts_have_in_common():
    rng = np.random.default_rng(6)
    tokens = rng.uniform(10, 200, size=40)
    slow = tokens * rng.uniform(0.5, 2.0, size=40)  # some prompts are slow for every method
    prompts = np.arange(40)
    fast, base = np.column_stack([tokens, slow / 2]), np.column_stack([tokens, slow])
    paired = paired_ratio_interval(fast, prompts, base, prompts)
    assert paired[:3] == pytest.approx((2.0, 2.0, 2.0))
    alone = ratio_interval(tokens, slow / 2, prompts)
    assert alone.high / alone.low > 1.2


def test_paired_ratio_uses_only_shared_prompts():
    mine = [[10.0, 1.0], [30.0, 1.0], [99.0, 1.0]]
    base = [[10.0, 2.0], [10.0, 2.0], [1.0, 50.0]]
    found = paired_ratio_interval(mine, ["a", "b", "only mine"], base, ["b", "a", "only base"])
    assert found.value == pytest.approx((40 / 2) / (20 / 4))
    assert found.n == 2


def test_undefined_ratios_are_silent_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(ratio(np.array([1.0, 0.0])))
        low, high = percentiles(ratio(np.array([[1.0, 0.0], [1.0, 2.0], [3.0, 2.0]])))
    assert 0.5 < low < high < 1.5  # of the values that there are
    assert np.isnan(percentiles(np.array([np.nan]))).all()


def test_bootstrap_has_the_data_itself_before_its_resamples():
    sums = np.random.default_rng(7).normal(size=(12, 3, 2))
    totals = bootstrap(sums)
    np.testing.assert_allclose(totals[0], sums.sum(axis=0))
    np.testing.assert_array_equal(totals[1:], resample(sums))


def test_an_estimate_is_what_an_interval_is_made_of():
    values = np.random.default_rng(8).normal(size=25)
    sums = np.column_stack([values, np.ones(25)])
    assert estimate(ratio(bootstrap(sums)), 25) == mean_interval(values, range(25))
