from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit

from specbench.analysis.statistics import front
from specbench.analysis.statistics.intervals import bootstrap, mean_interval
from specbench.analysis.statistics.points import Gains, settings_of
from specbench.analysis.statistics.summary import cells_of, summarise
from specbench.errors import UsageError
from specbench.tasks.metrics.overlap import corpus_bleu

from ..told import refusals


def array(*values):
    return np.array(values, dtype=float)


def test_hull_has_only_corners():
    for gain, quality, expected in (
        (array(0.2, 0.5, 0.9), array(0.9, 0.6, 0.1), [0, 1, 2]),
        (array(0.9, 0.5, 0.2), array(0.1, 0.6, 0.9), [2, 1, 0]),  # by increasing gain
        (array(0.2, 0.5, 0.9), array(0.9, 0.5, 0.3), [0, 2]),  # below the chord
        (array(0.2, 0.5, 0.8), array(0.9, 0.6, 0.3), [0, 2]),  # on the chord
        (array(0.2, 0.5, 0.9), array(0.5, 0.6, 0.7), [2]),  # the last one dominates all
        (array(0.5, 0.5), array(0.4, 0.6), [1]),  # same gain, better quality
        (array(0.4, 0.6), array(0.5, 0.5), [1]),  # same quality, more gain
        (array(0.2, np.nan, 0.9), array(0.9, 1.0, np.nan), [0]),
        (array(), array(), []),
    ):
        assert list(front.hull(gain, quality)) == expected
    assert len(front.hull(array(0.5, 0.5), array(0.5, 0.5))) == 1  # equal points


def best_mixture(gains, quality, at):
    """The front by brute force: every mixture of two points in steps of 0.001."""
    best = -np.inf
    shares = np.linspace(0, 1, 1001)
    for i in range(len(quality)):
        for j in range(len(quality)):
            top = shares * gains.numerator[i] + (1 - shares) * gains.numerator[j]
            bottom = shares * gains.denominator[i] + (1 - shares) * gains.denominator[j]
            mixed = shares * quality[i] + (1 - shares) * quality[j]
            best = max(best, mixed[top >= at * bottom - 1e-12].max(initial=-np.inf))
    return best


def test_front_is_the_best_mixture_of_counts():
    rng = np.random.default_rng(0)
    for _ in range(20):
        proposed = rng.uniform(10, 60, size=5)
        gains = Gains(rng.uniform(0.2, 1, size=5) * proposed, proposed)
        quality = rng.random(5)
        at = rng.uniform(gains.value.min(), gains.value.max())
        level = float(front.front_quality(gains, quality, at))
        assert level == pytest.approx(best_mixture(gains, quality, at), abs=2e-3)
        # Mixtures of three or more points are no better than those of the best two.
        shares = rng.dirichlet(np.full(5, 0.3), size=2000)
        enough = shares @ gains.numerator >= at * (shares @ gains.denominator)
        assert (shares @ quality)[enough].max(initial=0) <= level + 1e-9


def plain(gain):
    """Gains whose ratios mix linearly."""
    return Gains(gain, np.where(np.isnan(gain), 0.0, 1.0))


@pytest.fixture
def clouds():
    """200 clouds of 7 points on a coarse grid, so many are equal and some undefined."""
    rng = np.random.default_rng(0)
    gain, quality = rng.integers(0, 6, size=(2, 200, 7)) / 5
    gain[rng.random(gain.shape) < 0.1] = np.nan
    quality[rng.random(gain.shape) < 0.1] = np.nan
    return gain, quality


def test_many_fronts_at_once_equal_fronts_one_by_one(clouds):
    at = np.random.default_rng(1).uniform(-0.2, 1.2, size=200)
    qualities = front.front_quality(plain(clouds[0]), clouds[1], at)
    for gain, quality, level, here in zip(*clouds, at, qualities, strict=True):
        corners = front.hull(gain, quality)
        assert here == pytest.approx(np.interp(level, gain[corners], quality[corners]))
    gain, quality = array(0.4, 0.6, 0.8), array(0.9, 0.1, 0.3)  # gain and quality swapped
    there = front.front_quality(plain(gain), quality, 0.5)
    assert front.front_quality(plain(quality), gain, there) == pytest.approx(0.5)


def gap_of(frame, gain="acceptance"):
    settings = settings_of(frame)
    (diversed,) = (setting for setting in settings if setting.method == "diversed")
    return front.gap_between([diversed], front.front_of(settings), gain)


def coin(make, prompts=400):
    """``sd``, the draft alone, and a method that picks one of them at random for each prompt."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(prompts):
        sd = {"quality": float(rng.random() < 0.95), "accepted": 10, "proposed": 25}
        draft = {"quality": float(rng.random() < 0.05), "accepted": 15, "proposed": 15}
        half = {"quality": float(rng.random() < 0.5), "accepted": 10, "proposed": 20}
        mixed = draft if rng.random() < 0.4 else sd
        rows += [
            {"method": "sd", **sd},
            {"method": "static", "weight": 0.5, **half, "quality": half["quality"] * 0.2},
            {"method": "static", "weight": 0.0, **draft},
            {"method": "diversed", **mixed},
        ]
    ids = [f"p{i // 4}" for i in range(len(rows))]
    return make(*({**row, "sample_id": i} for row, i in zip(rows, ids, strict=True)))


def test_a_coin_between_two_weights_is_not_above_the_front(make):
    """It is a static ensemble itself; the line between the weights' points is far below it."""
    frame = coin(make)
    gap = gap_of(frame)
    assert gap.above.low < 0 < gap.above.high
    assert abs(gap.above.value) < 0.03
    acceptance = np.array([0.4, 0.5, 1.0])
    points = frame.groupby("weight", dropna=False)["quality"].mean()
    sd = frame.loc[frame["method"] == "sd", "quality"].mean()
    joined = np.interp(gap.reached.acceptance[0, 0], acceptance, [sd, points[0.5], points[0.0]])
    assert gap.reached.quality[0, 0] - joined > 0.3


def run(make, diversed_quality, diversed_accepted, prompts=10, spread=0.0, **shared):
    """A front from (acceptance 0.4, quality 0.8) to (0.8, 0.4), and a method to compare."""
    points = [
        ({"method": "sd"}, 0.8, 10),
        ({"method": "static", "weight": 0.2}, 0.4, 20),
        ({"method": "diversed"}, diversed_quality, diversed_accepted),
    ]
    return make(
        *(
            {
                **cell,
                "sample_id": f"p{i}",
                "quality": quality + spread * (i - (prompts - 1) / 2) / prompts,
                "accepted": accepted,
            }
            for cell, quality, accepted in points
            for i in range(prompts)
        ),
        **shared,
    )


def test_gap_is_quality_above_the_front_at_equal_acceptance(make):
    for quality, accepted, above, level in (
        (0.7, 15, 0.1, 0.6), (0.5, 15, -0.1, 0.6), (0.9, 5, 0.1, 0.8)
    ):  # fmt: skip
        gap = gap_of(run(make, quality, accepted))
        assert gap.above.value == pytest.approx(above)
        assert gap.front == pytest.approx(level)
        assert gap.reached.acceptance[0, 0] == pytest.approx(accepted / 25)
        assert (gap.reached.quality[0, 0], gap.above.n) == (pytest.approx(quality), 10)


def test_gap_names_its_neighbours_and_needs_no_interpolation_above_the_lower(make):
    for accepted, measured, between, step in (
        (12, 0.8, ("sd", "w=0.5"), 0.25),
        (17, 0.6, ("w=0.5", "w=0.2"), 0.15),  # w=0.5 is below the chord, the front there is not
        (5, 0.8, (None, "sd"), np.nan),
    ):
        frame = run(make, 0.7, accepted)
        middle = frame[frame["method"] == "static"].assign(weight=0.5, accepted=15, quality=0.55)
        gap = gap_of(pd.concat([frame, middle]))
        assert gap.front_measured == pytest.approx(measured)
        assert gap.above_measured[:3] == pytest.approx([0.7 - measured] * 3)
        assert gap.between == between
        assert gap.step == pytest.approx(step, nan_ok=True)


def test_beyond_the_last_weight_a_gap_needs_the_draft_alone_and_anywhere_shared_prompts(make):
    """Without it, a coin between sd and the draft may have any quality there."""
    frame = run(make, 0.7, 25)
    gap = gap_of(frame)
    assert np.isnan([*gap.above[:3], *gap.above_measured[:3]]).all()
    assert gap.between == ("w=0.2", None)
    gap = gap_of(frame.assign(weight=frame["weight"] * 0))
    assert gap.above.value == pytest.approx(0.3)
    assert gap.above_measured[:3] == pytest.approx([0.3] * 3)
    frame = run(make, 0.7, 15)
    lost = (frame["method"] == "static") & frame["sample_id"].isin(["p0", "p1"])
    assert gap_of(frame[~lost]).above.n == 8


def test_a_front_has_qualities_from_0_to_1():
    """So a lead is between -1 and the method's own quality, however few prompts there are."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        quality = (rng.random((12, 4)) < [0.9, 0.95, 0.1, 0.5]).astype(float)
        above = front.lead_of_means(quality, rng.normal([0.9, 0.5, 0.8, 0.95], 0.1, (12, 4)))
        assert -1 <= above.low <= above.value <= quality[:, 0].mean()
        assert above.value <= above.high <= 1


SECONDS = {"sd": 1.0, "static": 0.5, "diversed": 0.625, "autoregressive": 2.0}


def timed(frame):
    return frame.assign(prefill_seconds=0.0, decode_seconds=frame["method"].map(SECONDS))


def test_a_band_in_speedup_needs_its_baseline_and_sd_has_one_quality(make):
    frame = timed(run(make, 0.9, 15))
    with pytest.raises(UsageError, match="needs autoregressive"):
        front.front_band(frame, "speedup")
    alone = {"method": "autoregressive", "draft_length": 0, "accepted": np.nan}
    baseline = frame[frame["method"] == "sd"].assign(**alone)
    band = front.front_band(timed(pd.concat([frame, baseline])), "speedup")
    assert (band["gain"].min(), band["gain"].max()) == pytest.approx((2, 4))
    # A mixture that is 3.2 times as fast takes 0.625 s, between 0.5 and 1 s.
    assert np.interp(3.2, band["gain"], band["quality"]) == pytest.approx(0.5, abs=1e-3)
    # The luckier of two draft lengths must not raise the front.
    frame = timed(run(make, 0.9, 15))
    slow = frame[frame["method"] == "sd"].assign(draft_length=8, quality=0.6, decode_seconds=1.5)
    frame = pd.concat([frame, slow])
    assert gap_of(frame, "time").front == pytest.approx(0.4 + (0.7 - 0.4) / 4)


def test_the_gaps_interval_has_its_nominal_coverage(make):
    rng = np.random.default_rng(3)
    frame = run(make, 0.7, 15, prompts=60)
    chance, gaps = frame["quality"].to_numpy(), []
    for _ in range(150):
        frame["quality"] = (rng.random(len(frame)) < chance).astype(float)
        gaps.append(gap_of(frame).above)
    coverage = np.mean([gap.low <= 0.1 <= gap.high for gap in gaps])
    assert 0.90 <= coverage <= 0.99  # 95 % nominal; two standard errors are 4 points


def test_band_is_the_interval_of_the_front_at_each_gain(make):
    rng = np.random.default_rng(4)
    frame = run(make, 0.7, 15, prompts=30)
    frame["quality"] = np.clip(frame["quality"] + rng.normal(0, 0.1, len(frame)), 0, 1)
    band = front.front_band(frame)
    assert band["gain"].is_monotonic_increasing
    for gain, share in ((0.4, 0.0), (0.6, 0.5), (0.8, 1.0)):
        here = band.loc[(band["gain"] - gain).abs().idxmin()]
        of = frame.set_index("method")["quality"]
        sd, static = (of[method].to_numpy() for method in ("sd", "static"))
        prompts = frame.loc[frame["method"] == "sd", "sample_id"]
        interval = mean_interval((1 - share) * sd + share * static, prompts)
        assert tuple(here[["quality", "low", "high"]]) == pytest.approx(interval[:3])


# By method: lengths, shared n-grams and n-grams of texts on two prompts, as in samples.csv.
BLEU = {
    "sd": ["6 6 6 5 4 3 6 5 4 3", "4 6 2 1 0 0 4 3 2 1"],
    "static": ["9 5 4 1 0 0 9 8 7 6", "5 5 4 2 1 0 5 4 3 2"],
    "diversed": ["6 6 5 4 3 2 6 5 4 3", "6 6 6 5 4 3 6 5 4 3"],
}


def test_gap_in_bleu_is_one_of_corpus_bleu_and_none_without_a_front(make, stored):
    frame = run(make, 0.7, 15, prompts=10, quality_metric="bleu")
    terms = [BLEU[row.method][int(row.sample_id[1:]) % 2] for row in frame.itertuples()]
    frame["bleu_terms"] = terms
    summary = cells_of(summarise(frame)).set_index("method")["quality"]
    gap = gap_of(frame)
    assert gap.reached.quality[0, 0] == summary["diversed"]
    assert gap.front == pytest.approx(summary["diversed"] - gap.above.value)
    assert gap.front == pytest.approx((summary["sd"] + summary["static"]) / 2, abs=0.01)
    sums = [[[int(n) for n in BLEU[m][i % 2].split()] for m in BLEU] for i in range(10)]
    sd, static, diversed = corpus_bleu(bootstrap(np.array(sums, dtype=float))[1:]).T
    gaps = diversed - np.maximum((sd + static) / 2, static)
    value = gap.reached.quality[0, 0] - (summary["sd"] + summary["static"]) / 2
    half = stdtrit(9, 0.975) * gaps.std() * (10 / 9) ** 0.5
    assert gap.above.low == pytest.approx(value - half)
    frame = run(make, 0.7, 15)
    changes = (frame[frame["method"] != "static"], frame.assign(quality=np.nan))
    stored(refusals(*(partial(gap_of, change) for change in changes)))
