"""The static front, and how far a method lies above it.

A static ensemble buys acceptance with quality at one exchange rate per task, with ``sd`` as its
lossless end (w = 1; arXiv 2604.07622). Drawing a weight at random for each prompt is a static
ensemble too, so the front to beat is the *randomised* one: the upper concave hull of the measured
weights. A mixture's quality and time are means over prompts and mix linearly; its acceptance is the
accepted drafts of all prompts over the proposed ones, so these two are mixed and not their ratio.
Corpus BLEU, which is no mean, is mixed as if it were one.

Every function of fronts takes leading axes, one front for each resample of a bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from specbench.analysis.intervals import Floats, Interval, estimate
from specbench.analysis.points import (
    Gain,
    Gains,
    PointEstimates,
    Points,
    Setting,
    settings_of,
    shared_points,
)
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE

STATIC_FAMILY = ("sd", "static")
_POINTS = 101  # along a front that is drawn
_STEPS = 32  # of an area under a front
#: Points on either side of a method whose qualities differ by more leave much to interpolation.
COARSE = 0.05


class Gap(NamedTuple):
    """A method's quality minus the randomised static front's at the method's own gain."""

    above: Interval  # quality minus the front at the same gain, which lies on a chord
    above_measured: Interval  # quality minus the front at ``between[0]``, without interpolation
    reached: PointEstimates  # point 0 is the method
    front: float  # quality, 0 to 1
    front_measured: float
    between: tuple[str | None, str | None]  # the front's points next in gain, below and above
    step: float  # the difference of their qualities; NaN where one is missing


def static_weight(frame: pd.DataFrame) -> pd.Series:
    """The weight on the target of each row's method: 1 for ``sd``, NaN outside the family."""
    weight = frame["weight"].where(frame["method"] == "static")
    return weight.mask(frame["method"] == "sd", 1.0)


def front_of(settings: Sequence[Setting], family: Sequence[str] = STATIC_FAMILY) -> list[Setting]:
    """Return the points of a front, those that emit the target's distribution first."""
    points = [setting for setting in settings if setting.method in family]
    return sorted(points, key=lambda point: point.emits_target, reverse=True)


def hull(gain: Floats, quality: Floats) -> NDArray[np.intp]:
    """Indices of the corners of the upper concave hull of points, by rising gain.

    Its first corner is the point of highest quality: whoever has it needs no less gain.
    """

    def lies_below(a: np.intp, b: np.intp, c: np.intp) -> bool:
        """True where b does not lie above the chord from a to c."""
        rise, run = quality[[b, c]] - quality[a], gain[[b, c]] - gain[a]
        return bool(rise[0] * run[1] <= rise[1] * run[0])

    defined = np.flatnonzero(~(np.isnan(gain) | np.isnan(quality)))
    corners: list[np.intp] = []
    for point in defined[np.lexsort((quality[defined], gain[defined]))]:
        while corners and quality[corners[-1]] <= quality[point]:
            corners.pop()
        while len(corners) > 1 and lies_below(corners[-2], corners[-1], point):
            corners.pop()
        if not corners or gain[corners[-1]] < gain[point]:
            corners.append(point)
    return np.array(corners, dtype=np.intp)


def front_quality(gains: Gains, quality: Floats, at: ArrayLike) -> Floats:
    """Highest quality [...] that a mixture of points has at a gain of no less than ``at``.

    A mixture that gives the share s_i of the prompts to point i has the gain sum s a / sum s b and
    the quality sum s q. The best one is the solution of a linear program with two constraints, so
    two points are enough: one whose gain suffices, and one of higher quality whose gain does not.
    Beyond the largest gain of any point the quality is that point's, which flatters the front, so
    a distance there is a lower bound. Gain and quality may change places: then it is the largest
    gain of a mixture whose quality is no less than ``at``.

    ``gains`` and ``quality`` are [..., points], ``at`` is [...].
    """
    defined = (gains.denominator > 0) & ~np.isnan(quality)
    surplus = gains.numerator - np.asarray(at)[..., None] * gains.denominator
    # Point after point in memory, along which all that follows runs.
    own, level = (np.ascontiguousarray(np.moveaxis(v, -1, 0)) for v in (surplus, quality))
    known = np.moveaxis(defined, -1, 0)
    enough, short = known & (own >= 0), known & (own < 0)
    best = np.where(enough, level, -np.inf).max(axis=0, initial=-np.inf)
    others = [point for point, row in enumerate(short) if row.any()]
    for point in [point for point, row in enumerate(enough) if others and row.any()]:
        with np.errstate(invalid="ignore", divide="ignore"):
            share = own[point] / (own[point] - own[others])  # of the point whose gain is short
            mixed = level[point] + (level[others] - level[point]) * share
        mixed = np.where(enough[point] & short[others], mixed, -np.inf)
        best = np.maximum(best, mixed.max(axis=0, initial=-np.inf))
    if np.isinf(best).any():
        furthest = np.where(defined, gains.value, -np.inf)
        last = (furthest == furthest.max(axis=-1, keepdims=True, initial=-np.inf)) & defined
        beyond = np.where(last, quality, -np.inf).max(axis=-1, initial=-np.inf)
        best = np.where(np.isinf(best), beyond, best)
    return np.where(np.isinf(best), np.nan, best)


def hypervolume(gains: Gains, quality: Floats, reference: tuple[float, float]) -> Floats:
    """Area [...] under the randomised front of points and above a reference point.

    ``gains`` and ``quality`` are [..., points]; what is worse than the reference, a gain and a
    quality, in either adds no area.
    """
    value = gains.value
    defined = ~(np.isnan(value) | np.isnan(quality))
    reach = np.where(defined, value - reference[0], 0.0).max(axis=-1, initial=0.0)
    heights = [
        np.nan_to_num(front_quality(gains, quality, reference[0] + share * reach) - reference[1])
        for share in np.linspace(0, 1, _STEPS + 1)
    ]
    area: Floats = np.trapezoid(np.maximum(heights, 0.0), axis=0) * reach / _STEPS
    return area


def points_with_front(
    first: list[Setting], front: list[Setting], last: Sequence[Setting] = ()
) -> Points:
    """Sum what settings reach: some, then the points of a front (``front_of``), then others.

    Raises:
        UsageError: The front has too few points, or no prompt has a quality in every setting.
    """
    strict = sum(point.emits_target for point in front)
    if strict == len(front):
        where = "".join(f" on {one.cell['task']}" for one in [*first, *front][:1])
        raise UsageError(f"A front{where} needs two static weights or more; sweep the weights.")
    return shared_points([*first, *front, *last], range(len(first), len(first) + strict))


def gap_between(own: Setting, front: list[Setting], gain: Gain) -> Gap:
    """How far a setting lies above the randomised front of others (``front_of``), at its own gain.

    Prompts are resampled jointly for the method and every point of the front, and the front is
    drawn anew in each resample, so the interval includes the uncertainty of the front. A front
    takes the best of noisy points and so lies a little too high, which makes the gap a cautious
    one. Between the measured weights it is a chord, below which a front of more weights cannot lie
    but above which it may; so the distance to the front at its point of next lower gain stands
    beside it, which needs no interpolation: no weight with more gain has a higher quality than
    that. At equal acceptance the front is to be of the setting's draft length.

    Raises:
        UsageError: As of ``points_with_front``.
    """
    reached = points_with_front([own], front).estimates()
    points = slice(1, None)
    quality, gains = reached.quality, reached.gains(gain)
    front_gains, at = gains.of(points), gains.value[:, 0]
    below, above = _neighbours(front_gains.value[0], at[0])
    # Without a point of less gain the front has its highest quality there.
    measured = np.full_like(at, -np.inf) if below is None else front_gains.value[:, below]
    level, level_measured = (
        front_quality(front_gains, quality[:, points], g) for g in (at, measured)
    )
    step, names = float("nan"), [None if n is None else front[n].point for n in (below, above)]
    if below is not None and above is not None:
        step = float(quality[0, 1 + below] - quality[0, 1 + above])
    return Gap(
        above=estimate(quality[:, 0] - level, reached.n),
        above_measured=estimate(quality[:, 0] - level_measured, reached.n),
        reached=reached,
        front=float(level[0]),
        front_measured=float(level_measured[0]),
        between=(names[0], names[1]),
        step=step,
    )


def _neighbours(gains: Floats, at: float) -> tuple[int | None, int | None]:
    """The points next to a gain: the largest below it, and the smallest that reaches it."""
    order = [int(point) for point in np.argsort(gains)]
    below = [point for point in order if gains[point] < at]  # NaN is neither
    above = [point for point in order if gains[point] >= at]
    return next(reversed(below), None), next(iter(above), None)


def front_band(samples: pd.DataFrame, gain: Gain = "acceptance") -> pd.DataFrame:
    """The randomised static front as a curve, with its pointwise 95 % band.

    The front is drawn anew in each resample of the prompts that all its points have. Samples are of
    one task, pair, temperature, engine and batch size; a speed-up needs ``autoregressive``.

    Returns:
        By rising gain: ``gain`` (a fraction for acceptance, seconds per sample for time, a factor
        for the speed-up), and ``quality``, ``low`` and ``high``, 0 to 1.

    Raises:
        UsageError: The samples do not determine a front.
    """
    settings = settings_of(samples)
    front = front_of(settings)
    baseline = [one for one in settings if one.method == AUTOREGRESSIVE and gain == "speedup"]
    if gain == "speedup" and not baseline:
        raise UsageError("A speed-up needs autoregressive; run it too.")
    reached = points_with_front([], front, baseline).estimates()
    points = slice(len(front))
    gains, quality = reached.gains(gain).of(points), reached.quality[:, points]
    value = gains.value[0]
    corners = value[hull(value, quality[0])]
    grid = np.union1d(corners, np.linspace(corners.min(), corners.max(), _POINTS))
    curve = [estimate(front_quality(gains, quality, at), reached.n)[:3] for at in grid]
    band = pd.DataFrame(curve, columns=["quality", "low", "high"])
    band.insert(0, "gain", np.abs(grid))
    return band.sort_values("gain", ignore_index=True)
