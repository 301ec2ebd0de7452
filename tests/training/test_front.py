"""The worth of a head, compared with known points of the static ensemble."""

import math

import numpy as np
import pytest
import torch

from specbench.analysis.statistics.intervals import Interval
from specbench.analysis.statistics.proportions import smallest_shown
from specbench.analysis.tables.table import between
from specbench.errors import UsageError
from specbench.tasks.metrics import get_metric
from specbench.training import front
from specbench.training.front import InputSums, Point, Worth

from .conftest import PROMPTS, made_point

ROUGE = get_metric("rouge2")
STATIC = [made_point(weight) for weight in (1.0, 0.6, 0.0)]


def test_a_head_on_the_line_has_no_distance_and_one_above_it_has_its_own():
    """Nor does one of a static weight below its own hull: the front is the neighbours' chord."""
    sagging = [STATIC[0], made_point(0.6, quality=0.5), STATIC[-1]]
    assert front.distance(made_point(0.6), sagging).value == pytest.approx(0)
    on, above = made_point(0.5), made_point(0.5, quality=0.75)
    assert front.distance(on, STATIC).value == pytest.approx(0)
    distance = front.distance(above, STATIC)
    assert distance.value == pytest.approx(0.15) and distance.n == PROMPTS
    # The prompts are equally difficult, so the difference has no spread.
    assert distance.low == pytest.approx(distance.high)


def test_slope_and_weights_follow_the_measured_points():
    assert front.slope(STATIC) == pytest.approx(0.4 / 0.3)
    assert front.weight_for_acceptance(0.85, STATIC) == pytest.approx(0.5)
    assert front.weight_for_quality(0.6, STATIC) == pytest.approx(0.5)
    assert front.weight_for_quality(0.1, STATIC) == 0
    # A point that is better by chance does not make a smaller weight acceptable.
    uneven = [STATIC[0], made_point(0.6, quality=0.5), made_point(0.3, quality=0.6), STATIC[-1]]
    assert front.weight_for_quality(0.65, uneven) == pytest.approx(0.8)
    around = front.weights_around(made_point(0.5), STATIC)
    assert around == pytest.approx([1, 0.5 + 1 / 30, 0.5 - 1 / 30, 0])
    assert front.weights_around(made_point(1.0), STATIC) == pytest.approx([1, 1 - 1 / 30, 0])


@pytest.mark.parametrize(
    ("head", "told", "better"),
    [
        (made_point(0.5, quality=0.75), "above the randomised static front (15.0", True),
        (made_point(0.5, quality=0.5), "below the randomised static front (-10.0", False),
        (made_point(0.5), "not shown to be above the randomised static front (0.0", False),
        (made_point(0.001), "collapsed to the draft", False),
        (made_point(0.999), "collapsed to the target", False),
    ],
)
def test_one_sentence_says_what_a_head_is_worth(head, told, better):
    noise = np.random.default_rng(0).normal(0, 1e-3, PROMPTS)
    head = head._replace(quality=head.quality + noise - noise.mean())
    worth = Worth(head, STATIC)
    described = worth.described(ROUGE)
    assert told in described["sentence"]
    least, value = (100 * described[name] for name in ("distance_least", "distance"))
    assert between(least, value, ".1f") in described["sentence"]
    assert ("collapsed" in described["sentence"]) == (worth.collapsed is not None)
    assert (described["better"], described["n"]) == (better, PROMPTS)
    assert [other["name"] for other in described["others"]] == ["target", "static", "draft"]
    low, high = described["distance_interval"]
    assert low <= described["distance"] <= high
    assert f"n = {PROMPTS}" in described["sentence"]
    shown = f"{100 * described['smallest_shown']:.1f} points would be shown in 80 %"
    assert (shown in described["sentence"]) == (low <= 0 <= high)


def test_the_smallest_effect_is_shown_as_often_as_said_and_two_texts_count_as_one():
    rng, se = np.random.default_rng(0), 0.7
    half = 1.96 * se
    effect = smallest_shown(Interval(0.0, -half, half, 100))
    shown = np.mean(rng.normal(effect, se, 20_000) - half > 0)
    assert shown == pytest.approx(0.8, abs=0.01)
    first, second = made_point(0.4, quality=0.7), made_point(0.6, quality=0.8)
    mean = Point.mean([first, second])
    assert (mean.weight, len(mean.quality)) == (pytest.approx(0.5), PROMPTS)
    np.testing.assert_allclose(mean.quality, (first.quality + second.quality) / 2)
    np.testing.assert_allclose(mean.acceptance, (first.acceptance + second.acceptance) / 2)


def test_without_anything_to_protect_training_is_refused():
    front.require_trade(STATIC, "quiz", ROUGE)
    noise = np.random.default_rng(0).normal(0, 0.2, PROMPTS)
    equal = made_point(0.0, quality=0.8)
    equal = equal._replace(quality=equal.quality + noise)
    with pytest.raises(UsageError, match=r"quiz: the target is not measurably bet.*draft$"):
        front.require_trade([STATIC[0], equal], "quiz", ROUGE)
    none = [made_point(weight, quality=0.0) for weight in (1.0, 0.0)]
    with pytest.raises(UsageError, match=r"0\.0 against 0\.0.* 12 held-out.*longer texts \(--max"):
        front.require_trade(none, "quiz", ROUGE)
    with pytest.raises(UsageError, match="not measurably better"):
        front.require_trade([STATIC[0], made_point(1.0, quality=0.1)], "quiz", ROUGE)


def test_a_point_survives_a_checkpoint_and_parts_of_the_prompts_give_mean_and_spread_of_all():
    restored = Point.from_lists(STATIC[0].lists())
    assert restored.weight == 1
    np.testing.assert_array_equal(restored.quality, STATIC[0].quality)
    np.testing.assert_array_equal(restored.acceptance, STATIC[0].acceptance)
    assert not math.isnan(front.distance(restored, STATIC).value)
    inputs = np.random.default_rng(1).normal(3, [0.1, 5], size=(40, 2))
    parts = [
        Point(1.0, np.ones(n), np.zeros(n), InputSums.of(torch.from_numpy(part)))
        for n, part in ((1, inputs[:7]), (2, inputs[7:]))
    ]
    whole = parts[0].joined(parts[1])
    assert len(whole.quality) == 3
    many = whole._replace(quality=np.ones(20), acceptance=np.ones(20)).described()
    assert many["acceptance_interval"] == [1, 1]  # of the draft alone, whose weight is 0
    assert many["quality_interval"] == pytest.approx([1 / (1 + 1.959964**2 / 20), 1])  # Wilson's
    mean, spread = Point.from_lists(whole.lists()).inputs.mean_and_spread()
    np.testing.assert_allclose(mean, inputs.mean(0))
    np.testing.assert_allclose(spread, inputs.std(0, ddof=1))


def test_a_lead_over_noisy_weights_has_both_its_ends():
    """The best of several noisy mixtures looks better on the prompts that chose it."""
    rng = np.random.default_rng(1)

    def noisy(point):
        return point._replace(quality=point.quality + rng.normal(0, 0.3, PROMPTS))

    more = [made_point(weight, quality=0.6) for weight in (0.8, 0.6, 0.4, 0.2)]
    worth = Worth(noisy(made_point(0.5)), [*map(noisy, [STATIC[0], *more, STATIC[-1]])])
    described = worth.described(ROUGE)
    least, value = (f"{100 * described[name]:.1f}" for name in ("distance_least", "distance"))
    assert least != value and f"({least} to {value} [" in described["sentence"]
