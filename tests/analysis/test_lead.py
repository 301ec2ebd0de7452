"""Leads over a front: levels where the truth is known, and the mixtures by hand."""

import numpy as np
import pytest

from specbench.analysis.statistics.lead import crossfitted_leads, lead
from specbench.analysis.statistics.points import Gains
from tasks.measure.levels import Setting, judged, words


@pytest.mark.parametrize(
    ("setting", "before"),
    [
        (Setting("flat", 30, 5), "below"),
        (Setting("line", 100, 9), "below"),
        (Setting("flat", 50, 5, heads=3, skewed=True), None),
    ],
    ids=["flat", "line", "heads"],
)
def test_methods_on_the_front_are_seldom_called_below_or_above_it(setting, before):
    """Of 300 draws, 12 may be called so: 4 %. A front chosen and measured at once fails."""
    now, at_once = words(setting, 300)
    assert now["below"] <= 4 and now["above"] <= 4
    # Seldom too large; the lead over the best mixture of the same prompts is smaller still.
    assert at_once["lead"] < now["lead"] < 0.7
    if before:
        assert at_once[before] > 8 and at_once["lead"] < -2


@pytest.mark.parametrize("front", ["convex", "coin", "S-shaped", "concave"])
def test_the_lead_over_bent_fronts_is_not_too_large(front):
    """Over mixtures that halves have chosen it is; the truth lies between both values."""
    setting, rng = Setting(front, 50, 5), np.random.default_rng(5)
    draws = [setting.draw(rng) for _ in range(150)]
    figures = [judged(*draw, 1)[0] for draw in draws]
    assert 100 * np.mean([figure.value for figure in figures]) < 1.2
    assert np.mean([figure.least for figure in figures]) < 0.01
    assert all(figure.low <= figure.least <= figure.value <= figure.high for figure in figures)
    halves = np.mean([crossfitted_leads(*draw, 1).mean() for draw in draws])
    assert 100 * halves > 1.2
    assert sum(figure.high < 0 for figure in figures) <= 11
    assert sum(figure.low > 0 for figure in figures) <= 11


def test_a_lead_is_at_most_that_over_the_coin_and_is_still_seen_on_both_sides():
    """Between them lies a weight that looks bad, so the coin is the front."""
    rng = np.random.default_rng(4)
    quality = (rng.random((60, 4)) < [0.6, 0.7, 0.3, 0.4]).astype(float)
    gains = Gains(np.tile([15.0, 10, 14, 20], (60, 1)), np.full((60, 4), 25.0))
    mean = quality.mean(axis=0)
    over_coin = mean[0] - (mean[1] + mean[3]) / 2
    leads = over_coin + np.concatenate([[[0.0]], rng.normal(0, 0.1, (2000, 1))])
    assert lead(leads, quality, gains, over_coin - 0.02).value == pytest.approx(over_coin - 0.02)
    assert lead(leads, quality, gains).value == pytest.approx(over_coin, abs=0.01)
    above, _ = words(Setting("line", 100, 5, lead=0.2), 60)
    below, _ = words(Setting("line", 100, 5, lead=-0.2), 60)
    assert (above["above"], below["below"]) >= (80, 90)
    assert above["lead"] == pytest.approx(20, abs=2.5)


def test_the_mixture_at_a_methods_gain_is_measured_on_the_other_half():
    """Without noise, a coin of the two points at .4 and .8 has quality .6 at a gain of .6."""
    quality = np.tile([0.7, 0.8, 0.4, 0.1], (20, 1))
    accepted = np.tile([15.0, 10.0, 20.0, 12.0], (20, 1))
    gains = Gains(accepted, np.full_like(accepted, 25.0))
    assert crossfitted_leads(quality, gains, 1) == pytest.approx(0.1)
    figure = lead(np.full((2001, 1), 0.1), quality, gains)
    assert figure[:4] == pytest.approx((0.1, 0.1, 0.1, 20)) and figure.p == 0
    undrafted = lead(np.full((2001, 1), 0.1), quality, Gains(0 * accepted, 0 * accepted))
    assert undrafted.n == 20 and np.isnan(undrafted[:3]).all()


def test_beyond_every_point_of_the_front_a_method_is_not_below_it():
    """It accepts more than any static weight that was measured, so its front is not known."""
    rng = np.random.default_rng(0)
    quality = (rng.random((100, 3)) < [0.2, 0.9, 0.8]).astype(float)
    accepted = np.tile([90.0, 50.0, 60.0], (100, 1))
    beyond, _ = judged(quality, Gains(accepted, np.full_like(accepted, 100.0)), 1)
    accepted[:, 2] = 95.0
    within, _ = judged(quality, Gains(accepted, np.full_like(accepted, 100.0)), 1)
    assert within.high < 0 < beyond.high
    assert beyond.value == pytest.approx(within.value, abs=0.1)


def test_p_belongs_to_the_interval_and_points_of_one_gain_make_no_lead_explode():
    """An end of the interval touches 0 where p is 5 %."""
    rng = np.random.default_rng(1)
    quality, gains = Setting("line", 40, 5).draw(rng)
    figure, _ = judged(quality, gains, 1)
    for shift in (figure.low, figure.high):
        moved = quality - [shift, *[0] * 5]
        assert judged(moved, gains, 1)[0].p == pytest.approx(0.05, abs=0.005)
    # Five weights of one true acceptance: the slope between two of them means nothing.
    rng = np.random.default_rng(2)
    for _ in range(300):
        quality = (rng.random((12, 6)) < 0.6).astype(float)
        accepted = rng.integers(9, 12, (12, 6)).astype(float)
        figure, _ = judged(quality, Gains(accepted, np.full_like(accepted, 20.0)), 1)
        assert np.abs(figure[:3]).max() < 3


def test_a_point_chosen_alone_must_have_the_gain_where_it_is_measured():
    """At equal time, a method in the middle of a line whose times vary much by prompt."""
    rng, below = np.random.default_rng(3), 0
    for _ in range(200):
        place = np.array([0.3, 0, 0.25, 0.5, 0.75, 1])
        luck = (rng.standard_normal((100, 1)) + rng.standard_normal((100, 6))) / np.sqrt(2)
        quality = (luck < np.array([0.253, 0.524, 0.253, 0, -0.253, -0.524])).astype(float)
        quality[:, 0] = luck[:, 0] < 0.2  # near the line at .3: .58 of 0.7 - 0.4 * .3
        length = np.exp(0.7 * rng.standard_normal((100, 1)) + 0.8 * rng.standard_normal((100, 6)))
        gains = Gains(-(1 - 0.5 * place) * length, np.ones((100, 6)))
        below += judged(quality, gains, 1)[0].high < 0
    assert below <= 8  # 4 %
    equal = judged(
        np.ones((30, 3)), Gains(np.tile([10.0, 9, 12], (30, 1)), np.full((30, 3), 20.0)), 1
    )
    assert (
        equal[0].low < 0 < equal[0].high and equal[0].p > 0.05
    )  # 30 equal scores do not show that nothing differs
