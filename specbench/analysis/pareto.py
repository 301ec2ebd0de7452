"""The static front, and how far a method lies above it.

A static ensemble buys acceptance with quality at one exchange rate per task: its points over the
weights w form a front, with ``sd`` as its lossless end (w = 1; arXiv 2604.07622). A method that
spends its bias only where it is harmless lies above it.

Every function of fronts takes leading axes, one front for each resample of a bootstrap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from specbench.analysis.frames import PARAMETERS
from specbench.analysis.intervals import Floats, estimate
from specbench.analysis.points import Gain, Reached, shared_points
from specbench.errors import UsageError

STATIC_FAMILY = ("sd", "static")
_BAND_POINTS = 101
#: What one front cannot mix; acceptance depends on the draft length as well.
_ONE = ("pair", "temperature", "engine", "batch_size", "quality_metric")


class Gap(NamedTuple):
    """A method's quality minus the static front's at the method's own gain.

    ``value``, ``low``, ``high``, ``quality`` and ``front`` are in the unit of quality, 0 to 1.
    """

    value: float
    low: float
    high: float
    n: int  # prompts
    acceptance: float
    seconds: float  # per sample
    quality: float
    front: float


def static_weight(frame: pd.DataFrame) -> pd.Series:
    """The weight on the target of each row's method: 1 for ``sd``, NaN outside the family."""
    weight = frame["weight"].where(frame["method"] == "static")
    return weight.mask(frame["method"] == "sd", 1.0)


def static_settings(samples: pd.DataFrame) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """The samples of plain SD at each draft length, and of each further static setting."""
    family = samples[samples["method"].isin(STATIC_FAMILY)]
    keys = [static_weight(family), family["draft_length"]]
    settings: dict[tuple[float, int], pd.DataFrame] = dict(list(family.groupby(keys)))
    strict = [group for (weight, _), group in settings.items() if weight == 1]
    return strict, [group for (weight, _), group in settings.items() if weight != 1]


def undominated(gain: Floats, quality: Floats) -> NDArray[np.bool_]:
    """Which points no other point dominates; of equal points the first stands for all.

    Args:
        gain: [..., points] what more of is better: acceptance, or minus the seconds.
        quality: [..., points] what more of is better.
    """
    mine, other = (..., slice(None), None), (..., None, slice(None))
    as_good = (gain[other] >= gain[mine]) & (quality[other] >= quality[mine])
    better = (gain[other] > gain[mine]) | (quality[other] > quality[mine])
    earlier = np.tri(gain.shape[-1], k=-1, dtype=bool)
    defined: NDArray[np.bool_] = ~(np.isnan(gain) | np.isnan(quality))
    dominated: NDArray[np.bool_] = (as_good & (better | earlier)).any(axis=-1)
    return defined & ~dominated


def front(gain: Floats, quality: Floats) -> NDArray[np.intp]:
    """Indices of the points that no other point dominates, by rising gain.

    Args:
        gain: [points] what more of is better: acceptance, or minus the seconds.
        quality: [points] what more of is better.
    """
    kept = np.flatnonzero(undominated(gain, quality))
    return kept[np.argsort(gain[kept])]


def front_quality(gain: Floats, quality: Floats, at: ArrayLike) -> Floats:
    """Quality of the piecewise-linear front at a given gain.

    Below the front's first point its quality is that of the first point, which dominates; above
    its last point that of the last, which flatters the front, so a gap there is a lower bound.
    Gain and quality may change places: then it is the front's gain at a given quality.

    Args:
        gain: [..., points] all points; the dominated ones are dropped here.
        quality: [..., points].
        at: [...] the gain asked for.

    Returns:
        [...], NaN where there is no point.
    """
    return _along(np.where(undominated(gain, quality), gain, np.nan), quality, np.asarray(at))


def _along(gain: Floats, quality: Floats, at: Floats) -> Floats:
    """``front_quality`` of points of which the dominated ones have a gain of NaN.

    Along a front quality falls as gain rises, so of all points on one side the nearest has the
    lowest quality on the left, and the highest on the right.
    """
    at = at[..., None]
    left, right = gain <= at, gain >= at
    x0 = np.where(left, gain, -np.inf).max(axis=-1, initial=-np.inf)
    y0 = np.where(left, quality, np.inf).min(axis=-1, initial=np.inf)
    x1 = np.where(right, gain, np.inf).min(axis=-1, initial=np.inf)
    y1 = np.where(right, quality, -np.inf).max(axis=-1, initial=-np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = y0 + (y1 - y0) * np.where(x1 > x0, (at[..., 0] - x0) / (x1 - x0), 0.0)
    reached = np.where(left.any(axis=-1), np.where(right.any(axis=-1), between, y0), y1)
    return np.where(np.isinf(reached), np.nan, reached)


def hypervolume(gain: Floats, quality: Floats, reference: tuple[float, float]) -> Floats:
    """Area that points dominate above a reference point, in gain times quality.

    Args:
        gain: [..., points].
        quality: [..., points].
        reference: Gain and quality that count as nothing; what is worse in either adds no area.

    Returns:
        [...].
    """
    undefined = np.isnan(gain) | np.isnan(quality)
    across = np.where(undefined, 0.0, np.maximum(gain - reference[0], 0.0))
    up = np.where(undefined, 0.0, np.maximum(quality - reference[1], 0.0))
    order = np.argsort(across, axis=-1)
    across, up = (np.take_along_axis(values, order, axis=-1) for values in (across, up))
    best_from_here_on = np.maximum.accumulate(up[..., ::-1], axis=-1)[..., ::-1]
    area: Floats = (np.diff(across, axis=-1, prepend=0.0) * best_from_here_on).sum(axis=-1)
    return area


def gap_above_front(
    samples: pd.DataFrame, *, task: str, method: str = "diversed", gain: Gain = "acceptance"
) -> Gap:
    """How far a method lies above the static front at its own acceptance rate, time or speed-up.

    Prompts are resampled jointly for the method and every static point, and the front is drawn
    anew in each resample, so the interval includes the uncertainty of the front. Quality is
    the figure of the summary: the mean over samples, and corpus BLEU for BLEU. A front takes the
    best of noisy points and so lies a little too high, which makes the gap a cautious one.

    Args:
        samples: Samples of one pair and temperature with the method in one setting and the static
            ensemble at two points or more (``sd`` counts as w = 1); of one draft length where
            the gain is acceptance. A speed-up needs ``autoregressive`` too.
        task: The task to look at.
        method: The method to place.
        gain: The axis along which the method is placed.

    Returns:
        The gap over the prompts that all of them have, with its 95 % interval.

    Raises:
        UsageError: The samples do not determine one gap.
    """
    rows = samples[samples["task"] == task]
    mine = rows[rows["method"] == method]
    if mine.empty:
        raise UsageError(f"There are no samples of {method} on {task}; run it first.")
    _one_front(rows[rows["method"].isin([*STATIC_FAMILY, method])], task, gain)
    if len(mine.drop_duplicates([*PARAMETERS, "draft_length"])) > 1:
        raise UsageError(f"{method} was run in several settings on {task}; choose one.")
    reached = _reached(mine, rows, task, gain)

    gains, quality = reached.gain(gain), reached.quality
    points = slice(1, -1) if gain == "speedup" else slice(1, None)
    level = front_quality(gains[:, points], quality[:, points], gains[:, 0])
    return Gap(
        *estimate(quality[:, 0] - level, reached.n),
        acceptance=float(reached.acceptance[0, 0]),
        seconds=float(reached.seconds[0, 0]),
        quality=float(quality[0, 0]),
        front=float(level[0]),
    )


def front_band(samples: pd.DataFrame, *, task: str, gain: Gain = "acceptance") -> pd.DataFrame:
    """The static front as a curve, with its pointwise 95 % band.

    The front is drawn anew in each resample of the prompts that all its points have.

    Args:
        samples: Samples of one pair and temperature with the static ensemble at two points or more
            (``sd`` counts as w = 1); of one draft length where the gain is acceptance. A speed-up
            needs ``autoregressive`` too.
        task: The task to look at.
        gain: The axis along which the front is drawn.

    Returns:
        By rising gain: ``gain`` (a fraction for acceptance, seconds per sample for time, a factor
        for the speed-up), and ``quality``, ``low`` and ``high``, 0 to 1.

    Raises:
        UsageError: The samples do not determine one front.
    """
    rows = samples[samples["task"] == task]
    _one_front(rows[rows["method"].isin(STATIC_FAMILY)], task, gain)
    reached = _reached(None, rows, task, gain)
    points = slice(None, -1) if gain == "speedup" else slice(None)
    gains, quality = reached.gain(gain)[:, points], reached.quality[:, points]
    gains = np.where(undominated(gains, quality), gains, np.nan)
    # Point after point in memory, along which ``_along`` reduces: four times as fast.
    gains, quality = np.asfortranarray(gains), np.asfortranarray(quality)
    corners = gains[0][~np.isnan(gains[0])]
    grid = np.union1d(corners, np.linspace(corners.min(), corners.max(), _BAND_POINTS))
    curve = [estimate(_along(gains, quality, at), reached.n)[:3] for at in grid]
    band = pd.DataFrame(curve, columns=["quality", "low", "high"])
    band.insert(0, "gain", np.abs(grid))
    return band.sort_values("gain", ignore_index=True)


def _reached(mine: pd.DataFrame | None, rows: pd.DataFrame, task: str, gain: Gain) -> Reached:
    """What a method, the static settings, and the baseline of a speed-up reach, in this order."""
    strict, relaxed = static_settings(rows)
    if static_weight(rows).nunique() < 2:
        raise UsageError(f"A front on {task} needs two static weights or more; sweep the weights.")
    first = [] if mine is None else [mine]
    baseline = rows[rows["method"] == "autoregressive"]
    last = [baseline] if gain == "speedup" else []
    if last and baseline.empty:
        raise UsageError(f"A speed-up on {task} needs autoregressive; run it too.")
    one_law = range(len(first), len(first) + len(strict))
    return shared_points([*first, *strict, *relaxed, *last], one_law).reached()


def _one_front(rows: pd.DataFrame, task: str, gain: Gain) -> None:
    for name in (*_ONE, *(["draft_length"] if gain == "acceptance" else [])):
        if rows[name].nunique() > 1:
            raise UsageError(f"The samples on {task} hold several values of {name}; choose one.")
