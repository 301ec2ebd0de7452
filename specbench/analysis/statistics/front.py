"""The static front, and the distance of a method above it.

A static ensemble trades quality for acceptance; ``sd`` is its lossless end (w = 1; arXiv
2604.07622). Drawing a weight at random for each prompt is a static method too, so the front to beat
is the *randomised* one: the upper concave hull of the measured weights. Quality and time of a
mixture are means over prompts and mix linearly. Acceptance is a ratio of sums, so its numerator and
denominator are mixed separately. Corpus BLEU is not a mean but is mixed as if it were.

All functions of fronts accept leading axes: one front per bootstrap resample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from specbench.analysis.statistics.intervals import (
    Floats,
    Interval,
    bootstrap,
    estimate,
    mean_over_seeds,
)
from specbench.analysis.statistics.lead import lead
from specbench.analysis.statistics.points import (
    Gain,
    Gains,
    PointEstimates,
    Points,
    Setting,
    settings_of,
    shared_points,
    with_pooled_target,
)
from specbench.analysis.statistics.proportions import unit_difference, with_rare_differences
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE

STATIC_FAMILY = ("sd", "static")
_POINTS = 101  # of a drawn front
#: A front is coarse at a method if the qualities of the neighbouring points differ by more than
#: this share of the range of quality between target and draft.
COARSE = 0.2


class Gap(NamedTuple):
    """Quality minus that of the randomised static front at a setting's own gain.

    For several heads of one recipe, all figures are means over the heads. Where the front ends
    before the setting, ``above`` and ``above_measured`` are NaN.
    """

    above: Interval  # quality minus the front at the same gain, interpolated on a chord (``lead``)
    above_measured: Interval  # quality minus the front at the gain of ``between[0]``, at least
    reached: PointEstimates  # the heads come first
    front: float  # quality, 0 to 1
    front_measured: float
    between: tuple[str | None, str | None]  # the front's points next to the first head
    step: float  # the difference of their qualities; NaN if one is missing or of several heads
    coarse: bool  # at any head, see ``COARSE``


def static_weight(frame: pd.DataFrame) -> pd.Series:
    """Return each row's weight on the target: 1 for ``sd``, NaN outside the static family."""
    weight = frame["weight"].where(frame["method"] == "static")
    return weight.mask(frame["method"] == "sd", 1.0)


def front_of(settings: Sequence[Setting], family: Sequence[str] = STATIC_FAMILY) -> list[Setting]:
    """Return the points of a front with a pooled target, lossless ones first."""
    points = [setting for setting in settings if setting.method in family]
    if points and not any(point.has_quality for point in points):
        raise UsageError(f"{points[0].cell['task']} has no quality, so it has no front.")
    points = with_pooled_target(points, settings)
    return sorted(points, key=lambda point: point.emits_target, reverse=True)


def hull(gain: Floats, quality: Floats) -> NDArray[np.intp]:
    """Return the corners of the upper concave hull as indices, by gain, from the best quality."""
    defined = np.flatnonzero(~(np.isnan(gain) | np.isnan(quality)))
    corners: list[np.intp] = []
    for point in defined[np.lexsort((quality[defined], gain[defined]))]:
        while corners and quality[corners[-1]] <= quality[point]:
            corners.pop()
        while len(corners) > 1:
            start, ends = corners[-2], [corners[-1], point]
            rise, run = quality[ends] - quality[start], gain[ends] - gain[start]
            if rise[0] * run[1] > rise[1] * run[0]:  # above the chord
                break
            corners.pop()
        if not corners or gain[corners[-1]] < gain[point]:
            corners.append(point)
    return np.array(corners, dtype=np.intp)


def front_quality(gains: Gains, quality: Floats, least: ArrayLike) -> Floats:
    """Return the highest quality [...] of a mixture of points with a gain of at least ``least``.

    A mixture that assigns the fraction s_i of the prompts to point i has gain sum s a / sum s b and
    quality sum s q. The best mixture solves a linear program with two constraints, so it uses at
    most two points: one with sufficient gain, and one of higher quality with insufficient gain.
    Beyond the largest gain of any point, that point's quality is used. Gain and quality can be
    swapped: the result is then the largest gain of a mixture with a quality of at least ``least``.

    ``gains`` and ``quality`` are [..., points], ``least`` is [...].
    """
    defined = (gains.denominator > 0) & ~np.isnan(quality)
    surplus = gains.numerator - np.asarray(least)[..., None] * gains.denominator
    # Points first, so that the loop below reads contiguous memory.
    spare = np.ascontiguousarray(np.moveaxis(surplus, -1, 0))
    level = np.ascontiguousarray(np.moveaxis(quality, -1, 0))
    is_defined = np.moveaxis(defined, -1, 0)
    enough, short = is_defined & (spare >= 0), is_defined & (spare < 0)
    best = np.where(enough, level, -np.inf).max(axis=0, initial=-np.inf)
    lower = [point for point, row in enumerate(short) if row.any()]
    for point in [point for point, row in enumerate(enough) if lower and row.any()]:
        with np.errstate(invalid="ignore", divide="ignore"):
            # Share of the point with too little gain.
            share = spare[point] / (spare[point] - spare[lower])
            mixed = level[point] + (level[lower] - level[point]) * share
        mixed = np.where(enough[point] & short[lower], mixed, -np.inf)
        best = np.maximum(best, mixed.max(axis=0, initial=-np.inf))
    if np.isinf(best).any():
        furthest = np.where(defined, gains.value, -np.inf)
        last = (furthest == furthest.max(axis=-1, keepdims=True, initial=-np.inf)) & defined
        beyond = np.where(last, quality, -np.inf).max(axis=-1, initial=-np.inf)
        best = np.where(np.isinf(best), beyond, best)
    return np.where(np.isinf(best), np.nan, best)


def points_with_front(
    first: list[Setting], front: list[Setting], last: Sequence[Setting] = ()
) -> Points:
    """Return the points of some settings, then of a front (``front_of``), then of other settings.

    Raises:
        UsageError: The front has too few points, or no prompt has a quality in every setting.
    """
    if all(point.emits_target for point in front):
        task = "".join(f" on {one.cell['task']}" for one in [*first, *front][:1])
        raise UsageError(
            f"a front{task} needs two static weights or more: repeat the run with static among "
            "its methods and --set weight=0.75,0.5,0"
        )
    return shared_points([*first, *front, *last])


def gap_between(heads: list[Setting], front: list[Setting], gain: Gain) -> Gap:
    """Return the distance of a setting above a randomised front (``front_of``) at its own gain.

    Prompts are resampled jointly for the method and all points of the front, and the front is
    recomputed in each resample; ``lead`` adds what its choice does to the distance. Between
    measured weights the front is a chord, and more weights could only be higher, so the distance
    from the front at its point of next lower gain is reported, too: a lower bound, whose upper end
    shows nothing. At equal acceptance, the front must have the setting's draft length. Without the
    draft alone (w = 0), nothing is known beyond the largest measured gain.

    Several ``heads`` of one recipe have the mean of their distances, with seeds and prompts as
    random effects.
    """
    points, first = points_with_front(heads, front), len(heads)
    reached = points.estimates()
    gains, quality = reached.gains(gain), reached.quality
    front_gains, front_qualities = gains.of(slice(first, None)), quality[:, first:]
    neighbours: list[tuple[int | None, int | None]] = []  # of largest gain below, of smallest above
    order = [int(point) for point in np.argsort(front_gains.value[0])]
    for gained in gains.value[0, :first]:
        below = [point for point in order if front_gains.value[0, point] < gained]  # not NaN
        beyond = [point for point in order if front_gains.value[0, point] >= gained]
        neighbours.append((next(reversed(below), None), next(iter(beyond), None)))
    # Without a point of lower gain, the front is at its highest quality there.
    lower = [
        np.full(len(quality), -np.inf) if below is None else front_gains.value[:, below]
        for below, _ in neighbours
    ]
    at_gain, at_measured = (
        np.stack([front_quality(front_gains, front_qualities, least) for least in levels], axis=-1)
        for levels in (gains.value[:, :first].T, lower)
    )  # [1 + RESAMPLES, heads]
    level = front_qualities[0]
    steps = [
        np.nan if lower is None or upper is None else level[lower] - level[upper]
        for lower, upper in neighbours
    ]
    has_draft = any(point.cell["weight"] == 0 for point in front)
    ends_before = not has_draft and any(beyond is None for _, beyond in neighbours)
    names = [None if n is None else front[n].point for n in neighbours[0]]
    of_units = points.unit_values(gain)
    coin = _coin(front)
    of_coin = Gains(front_gains.numerator[0, coin], front_gains.denominator[0, coin])
    at_coin = [front_quality(of_coin, level[coin], gained) for gained in gains.value[0, :first]]
    over_coin = float(np.mean(quality[0, :first] - at_coin)) if coin else np.nan
    above = lead(quality[:, :first] - at_gain, *of_units, over_coin)
    nearest = neighbours[0][0]
    if first == 1 and nearest is not None and at_measured[0, 0] == level[nearest]:
        # It is one point, so this is its difference from the method, as everywhere else.
        above_measured = unit_difference(of_units[0][:, 0], of_units[0][:, 1 + nearest])
    else:
        above_measured = mean_over_seeds(quality[:, :first] - at_measured, reached.n)
        if first == 1 and len(same := np.flatnonzero(level == at_measured[0, 0])):
            differences = of_units[0][:, 0] - of_units[0][:, 1 + same[0]]
            above_measured = with_rare_differences(above_measured, differences)
    if ends_before:
        above = above_measured = Interval(np.nan, np.nan, np.nan, reached.n)
    return Gap(
        above=above,
        above_measured=above_measured,
        reached=reached,
        front=float(quality[0, :first].mean()) - above.value,
        front_measured=float(at_measured[0].mean()),
        between=(names[0], None if ends_before else names[1]),
        step=float(steps[0]) if first == 1 else float("nan"),
        coarse=bool((np.abs(steps) > COARSE * np.ptp(level)).any()),
    )


def _coin(front: Sequence[Setting]) -> list[int]:
    """Return the points of ``sd`` and of the draft (w = 0) in a front, or none without both."""
    strict = [index for index, point in enumerate(front) if point.emits_target][:1]
    draft = [index for index, point in enumerate(front) if point.cell["weight"] == 0][:1]
    return strict + draft if strict and draft else []


def lead_of_means(quality: Floats, gain: Floats) -> Interval:
    """Return the lead of the first point over the randomised front of the others.

    The front's first point is the target and its last one the draft, as for a coin between both.
    Quality, and the gain whose mean is traded for it, are those of each prompt: [n, points].
    """
    totals = bootstrap(np.stack([quality, gain], axis=1)) / len(quality)
    level, gains = totals[:, 0], totals[:, 1]  # [1 + RESAMPLES, points]
    front = Gains(gains[:, 1:], np.ones_like(gains[:, 1:]))
    leads = level[:, 0] - front_quality(front, level[:, 1:], gains[:, 0])
    ends = Gains(gains[0, [1, -1]], np.ones(2))
    over_coin = float(level[0, 0] - front_quality(ends, level[0, [1, -1]], gains[0, 0]))
    return lead(leads[:, None], quality, Gains(gain, np.ones_like(gain)), over_coin)


def gaps_from_coin(points: Sequence[Setting]) -> dict[str, Gap]:
    """Return each static weight's distance above a coin between ``sd`` and the draft, by label.

    The coin decides for each prompt which of the two decodes it; the distance is at equal
    acceptance. Without a static weight of 0, a weight between, or qualities, there is none.
    """
    coin = [points[index] for index in _coin(points)]
    if not coin or not all(point.has_quality for point in points):
        return {}
    between = [point for point in points if not point.emits_target and point is not coin[1]]
    return {point.point: gap_between([point], coin, "acceptance") for point in between}


def front_band(
    samples: pd.DataFrame, gain: Gain = "acceptance", family: Sequence[str] = STATIC_FAMILY
) -> pd.DataFrame:
    """Return the randomised front of a family of methods as a curve with a pointwise 95 % band.

    The front is recomputed in each resample of the prompts that all its points share. The samples
    must be of one task, pair, temperature, engine and batch size, and for times of one session; a
    speed-up needs ``autoregressive``.

    Returns:
        Columns ``gain`` (ascending; a fraction for acceptance, seconds per sample for time, a
        factor for speed-up), ``quality``, ``low`` and ``high``, 0 to 1.
    """
    settings = settings_of(samples)
    front = front_of(settings, family)
    alone = [setting for setting in settings if setting.method == AUTOREGRESSIVE]
    baseline = alone if gain == "speedup" else []
    if gain == "speedup" and not baseline:
        raise UsageError("a speed-up needs autoregressive: run it too")
    reached = points_with_front([], front, baseline).estimates()
    points = slice(len(front))
    gains, quality = reached.gains(gain).of(points), reached.quality[:, points]
    value = gains.value[0]
    corners = value[hull(value, quality[0])]
    grid = np.union1d(corners, np.linspace(corners.min(), corners.max(), _POINTS))
    curve = [estimate(front_quality(gains, quality, cost), reached.n)[:3] for cost in grid]
    band = pd.DataFrame(curve, columns=["quality", "low", "high"])
    band.insert(0, "gain", np.abs(grid))
    return band.sort_values("gain", ignore_index=True)
