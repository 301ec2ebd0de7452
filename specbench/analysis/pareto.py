"""The static front, and how far a method lies above it.

A static ensemble buys acceptance with quality at one exchange rate per task: its points over the
weights w form a front, with ``sd`` as its lossless end (w = 1; arXiv 2604.07622). A method that
spends its bias only where it is harmless lies above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.analysis.frames import PARAMETERS
from specbench.analysis.intervals import (
    Floats,
    Statistic,
    cluster_sums,
    percentiles,
    ratio,
    resample,
)
from specbench.analysis.scores import score_terms
from specbench.errors import UsageError

STATIC_FAMILY = ("sd", "static")
_ACCEPTANCE = ["accepted", "proposed"]


class Gap(NamedTuple):
    """A method's quality minus the static front's at the method's own acceptance rate.

    ``value``, ``low``, ``high``, ``quality`` and ``front`` are in the unit of quality, 0 to 1.
    """

    value: float
    low: float
    high: float
    n: int  # prompts
    acceptance: float
    quality: float
    front: float


def static_weight(frame: pd.DataFrame) -> pd.Series:
    """The weight on the target of each row's method: 1 for ``sd``, NaN outside the family."""
    weight = frame["weight"].where(frame["method"] == "static")
    return weight.mask(frame["method"] == "sd", 1.0)


def front(gain: Floats, quality: Floats) -> NDArray[np.intp]:
    """Indices of the points that no other point dominates, by rising gain.

    Args:
        gain: [points] what more of is better: acceptance, or minus the seconds.
        quality: [points] what more of is better.
    """
    defined = np.flatnonzero(~(np.isnan(gain) | np.isnan(quality)))
    best_first = defined[np.lexsort((-quality[defined], -gain[defined]))]
    reached = np.maximum.accumulate(np.append(-np.inf, quality[best_first]))
    kept: NDArray[np.intp] = best_first[quality[best_first] > reached[:-1]]
    return kept[::-1]


def front_quality(gain: Floats, quality: Floats, at: float) -> float:
    """Quality of the piecewise-linear front at a given gain.

    Below the front's first point its quality is that of the first point, which dominates; above
    its last point that of the last, which flatters the front, so a gap there is a lower bound.

    Args:
        gain: [points] all points; the dominated ones are dropped here.
        quality: [points].
        at: The gain asked for.
    """
    chosen = front(gain, quality)
    if not len(chosen):
        return float("nan")
    return float(np.interp(at, gain[chosen], quality[chosen]))


def gap_above_front(samples: pd.DataFrame, *, task: str, method: str = "diversed") -> Gap:
    """How far a method lies above the static front at its own draft acceptance rate.

    Prompts are resampled jointly for the method and every static point, and the front is drawn
    anew in each resample, so the interval includes the uncertainty of the front. Quality is
    the figure of the summary: the mean over samples, and corpus BLEU for BLEU.

    Args:
        samples: Samples of one pair, temperature and draft length with the method in one setting
            and the static ensemble at two weights or more (``sd`` counts as w = 1).
        task: The task to look at.
        method: The method to place.

    Returns:
        The gap over the prompts that all of them have, with its 95 % interval.

    Raises:
        UsageError: The samples do not determine one gap.
    """
    rows = samples[samples["task"] == task]
    mine = rows[rows["method"] == method]
    family = rows[rows["method"].isin(STATIC_FAMILY)]
    _check(mine, family, task, method)
    statics = [group for _, group in family.groupby(static_weight(family))]
    sums, figure = _sums_on_shared_prompts([mine, *statics], mine["quality_metric"].iloc[0])
    if not len(sums):
        raise UsageError(f"On {task} no prompt has a quality for {method} and every static weight.")

    value, acceptance, quality, level = _gap(sums.sum(axis=0), figure)
    resampled = np.array([_gap(totals, figure)[0] for totals in resample(sums)])
    low, high = percentiles(resampled) if len(sums) > 1 else (float("nan"), float("nan"))
    return Gap(value, low, high, len(sums), acceptance, quality, level)


def _check(mine: pd.DataFrame, family: pd.DataFrame, task: str, method: str) -> None:
    if mine.empty:
        raise UsageError(f"There are no samples of {method} on {task}; run it first.")
    if static_weight(family).nunique() < 2:
        raise UsageError(f"A front on {task} needs two static weights or more; sweep the weights.")
    both = pd.concat([mine, family])
    for name in ("pair", "temperature", "draft_length", "quality_metric"):
        if both[name].nunique() > 1:
            raise UsageError(f"The samples on {task} hold several values of {name}; choose one.")
    if len(mine.drop_duplicates(list(PARAMETERS))) > 1:
        raise UsageError(f"{method} was run in several settings on {task}; choose one.")


def _sums_on_shared_prompts(points: list[pd.DataFrame], metric: object) -> tuple[Floats, Statistic]:
    """Sums per prompt and point, [prompts, points, (terms of quality, accepted, proposed)].

    With them comes the function from the terms of quality to quality.
    """
    summed = []
    for point in points:
        scored = point[point["quality"].notna()]
        terms, figure = score_terms(scored, "quality", metric)
        labels, sums = cluster_sums(np.hstack([terms, scored[_ACCEPTANCE]]), scored["sample_id"])
        summed.append(pd.DataFrame(sums, index=labels))
    shared: Floats = pd.concat(summed, axis=1, join="inner").to_numpy()
    return shared.reshape(len(shared), len(points), shared.shape[1] // len(points)), figure


def _gap(totals: Floats, figure: Statistic) -> tuple[float, float, float, float]:
    """Gap, acceptance, quality and front of totals [points, k]; the first point is the method."""
    quality, acceptance = figure(totals[:, :-2]), ratio(totals[:, -2:])
    level = front_quality(acceptance[1:], quality[1:], float(acceptance[0]))
    return float(quality[0]) - level, float(acceptance[0]), float(quality[0]), level
