"""The lead of a method over a front, without the bias of choosing the front on the same prompts.

The front is the best of noisy mixtures: on the prompts that choose it, its quality is too high, and
a lead too small (page *statistics*). "Above" must therefore hold for the best mixture of all
prompts (``least``), the strictest choice, and "below" for mixtures that one half of the prompts
chose, measured on the other, over many splits. The value is the lead over mixtures chosen on nine
tenths of the prompts, which is too large on average, and never above that over the coin of ``sd``
and the draft, which nobody chose.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.statistics import intervals
from specbench.analysis.statistics.intervals import Floats, Interval
from specbench.analysis.statistics.points import Gains
from specbench.analysis.statistics.proportions import with_rare_differences

NEGLIGIBLE = 1e-6  # difference of two points' surplus, as a share of the largest surplus
ALPHA = 1 - intervals.CONFIDENCE
DECIMALS = 12  # of a lead; further ones are noise of the sums
#: Parts of the prompts, and splits into them: halves for the upper end, since values of mixtures
#: chosen on nearly the same prompts vary together and would make it too low; tenths for the value.
HALVES, TENTHS = (2, 20), (10, 4)


def lead(leads: Floats, quality: Floats, gains: Gains, over_coin: float = float("nan")) -> Interval:
    """Return the lead of a method, or the mean lead of the heads of a recipe, over a front.

    The lower end is Student's t below the lead over the best mixture on all prompts, and the upper
    end is Student's t above the lead over mixtures that halves of the prompts have chosen. p is
    that of the end which is nearer to 0. Where few prompts differ, both ends are wider
    (``with_rare_differences``). A method whose gain exceeds that of every point of the front has no
    front there: the upper end is then its quality. Qualities are from 0 to 1, and so is the front.

    Args:
        leads: [1 + RESAMPLES, heads] quality minus that of the best mixture of all prompts, then of
            resamples.
        quality: [n, heads + points] quality of each prompt, see ``intervals.unit_values``.
        gains: The same of the gains.
        over_coin: The lead over the coin of ``sd`` and the draft; NaN without one.
    """
    n, heads = len(quality), leads.shape[1]
    crossed = crossfitted_leads(quality, gains, heads)
    means = crossed.mean(axis=1)
    if heads == 1:
        variance = float(leads[1:, 0].var()) * n / max(n - 1, 1)
        best = intervals.student(float(leads[0, 0]), n, (variance, n - 1))
        other = intervals.mean_of_units(means)
    else:
        best = intervals.mean_over_seeds(leads, n)
        other = intervals.mean_over_seeds(intervals.bootstrap(crossed) / n, n)
    if np.isnan(other.low):  # no gain, as without drafts
        return other
    wider = with_rare_differences(other, means)
    if wider != other:  # few prompts differ, so neither end is known
        p, low = max(best.p, wider.p), min(best.low, wider.low)
        best, other = best._replace(low=low, p=p), wider
    low, high = min(best.low, other.value), other.high
    p = 2 * min(_above(best), 1 - _above(other), 0.5)
    reached = float(quality[:, :heads].mean())
    of_heads, of_front = gains.of(slice(heads)), gains.of(slice(heads, None))
    with np.errstate(invalid="ignore"):
        furthest = np.nanmax(_mean(of_front), initial=-np.inf)
    if (_mean(of_heads) > furthest).any():
        high, p = max(high, reached), 2 * min(_above(best), 0.5)
    if low <= 0 <= high:
        p = max(p, ALPHA)
    value = np.nanmin([crossfitted_leads(quality, gains, heads, TENTHS).mean(), over_coin])
    value = min(max(value, low, reached - 1), reached, high)
    ends = value, max(low, -1.0), min(high, 1.0), min(float(leads[0].mean()), value)
    value, low, high, least = (round(float(end), DECIMALS) + 0.0 for end in ends)
    return Interval(value, low, high, n, p, least)


def crossfitted_leads(
    quality: Floats, gains: Gains, heads: int, parts: tuple[int, int] = HALVES
) -> Floats:
    """Return each prompt's lead over mixtures that other prompts have chosen, [n, heads].

    On all prompts but those of one part, the best mixture of two points is chosen that has the
    method's gain. On this part, its gain differs a little from the method's. Its quality is
    corrected by the difference times the slope of quality between both points, which makes errors
    of its share, and of the gain to be reached, negligible. Each part is measured in turn. The
    values of all splits are averaged, and spread about their mean as those of a single split, since
    values that share their prompts vary together.

    Args:
        quality: [n, heads + points].
        gains: [n, heads + points].
        heads: Number of methods, which come first.
        parts: ``HALVES`` or ``TENTHS``.

    Source: cross-fitting with orthogonal scores, Chernozhukov et al. 2018, arXiv:1608.00060.
    """
    n = len(quality)
    number = min(parts[0], n)
    choosing = _folds(n, number, parts[1])
    weights = choosing / np.maximum(choosing.sum(axis=1, keepdims=True), 1)
    columns = quality.T, gains.numerator.T, gains.denominator.T
    means = [weights @ column.T for column in columns]  # [halves, heads + points]
    leads = np.zeros((n, heads))
    for head in range(heads):
        gained = intervals.ratio(np.stack([means[1][:, head], means[2][:, head]], axis=-1))[:, None]
        surplus = means[1][:, heads:] - gained * means[2][:, heads:]
        mixture = _best_mixture(means[0][:, heads:], surplus)
        scores, numerators, denominators = (mixture.of(column[heads:]) for column in columns)
        # A method with more drafts needs more accepted ones for the same surplus.
        with np.errstate(divide="ignore", invalid="ignore"):  # a half may draft nothing
            size = mixture.of(means[2][:, heads:].T, rows=True) / means[2][:, [head]]
        needed = columns[1][head] - gained * columns[2][head]
        spare = numerators - gained * denominators - size * needed
        measured_spare = np.where(choosing > 0, 0.0, spare).reshape(-1, number, n)
        if number == HALVES[0]:
            lacks = measured_spare.reshape(-1, n).sum(axis=1, keepdims=True) < 0
        else:  # a tenth is too noisy to tell
            lacks = np.repeat(measured_spare.sum(axis=(1, 2)) < 0, number)[:, None]
        slope = np.where(lacks, mixture.slope_if_short[:, None], mixture.slope[:, None])
        measured = columns[0][head] - scores - slope * spare
        by_split = np.where(choosing > 0, 0.0, measured).reshape(-1, number, n).sum(axis=1)
        mean, centre = by_split.mean(axis=0), by_split.mean()
        single, averaged = by_split.var(axis=1).mean(), mean.var()
        factor = np.sqrt(single / averaged) if averaged > 0 else 1.0
        leads[:, head] = centre + max(factor, 1.0) * (mean - centre)
    return leads


class _Mixture(NamedTuple):
    """Mixtures of two points of a front, one for each row: indices [rows] and numbers [rows]."""

    enough: NDArray[np.intp]  # the point with enough gain
    short: NDArray[np.intp]  # the other one; the same if the first is better alone
    share: Floats  # of the other one
    slope: Floats  # quality per surplus of gain that is given up
    slope_if_short: Floats  # the same where the mixture turns out to have too little gain

    def of(self, columns: Floats, *, rows: bool = False) -> Floats:
        """Return a quantity of the mixtures from that of the points, ``[points, n]``.

        With ``rows``, n counts the mixtures, and each has its own value: [rows, 1].
        """
        index = (np.arange(len(self.share)),) if rows else ()
        first, second = columns[(self.enough, *index)], columns[(self.short, *index)]
        share = self.share if rows else self.share[:, None]
        mixed: Floats = first + share * (second - first)
        return mixed[:, None] if rows else mixed


def _best_mixture(quality: Floats, surplus: Floats) -> _Mixture:
    """Return the best mixture with a surplus of 0, from those of points ``[rows, points]``.

    Without a point that has a surplus, it is the point that lacks least.
    """
    rise = quality[:, None, :] - quality[:, :, None]
    run = surplus[:, :, None] - surplus[:, None, :]
    apart = run > NEGLIGIBLE * np.abs(surplus).max(axis=1)[:, None, None]
    mixes = (surplus[:, :, None] >= 0) & (surplus[:, None, :] < 0) & (rise > 0) & apart
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = rise / run
        slope = np.where(mixes, slopes, 0.0)
        share = np.where(mixes, surplus[:, :, None] / run, 0.0)
    alone = np.eye(quality.shape[1], dtype=np.bool_) & (surplus[:, :, None] >= 0)
    value = quality[:, :, None] + share * rise
    value = np.where(mixes | alone, value, -np.inf).reshape(len(quality), -1)
    enough, short = np.divmod(value.argmax(axis=1), quality.shape[1])
    nearest = np.nan_to_num(surplus, nan=-np.inf).argmax(axis=1)
    lacking = np.isinf(value).all(axis=1)
    enough, short = np.where(lacking, nearest, enough), np.where(lacking, nearest, short)
    rows = np.arange(len(quality))
    # More gain than that of a point alone costs what the next point of more gain costs.
    further = np.where(apart & (rise >= 0), slopes, np.inf)[rows, :, enough].min(axis=1)
    chosen = slope[rows, enough, short]
    if_short = np.where(enough == short, np.where(np.isinf(further), 0.0, further), chosen)
    return _Mixture(enough, short, share[rows, enough, short], chosen, if_short)


@lru_cache(maxsize=64)
def _folds(n: int, parts: int, splits: int) -> Floats:
    """Return which of n prompts choose, [splits * parts, n]: all but those of a part in turn."""
    rng = np.random.default_rng(intervals.SEED)
    part_of = np.array([rng.permutation(n) % parts for _ in range(splits)])
    choosing = part_of[:, None] != np.arange(parts)[:, None]
    folds: Floats = choosing.reshape(-1, n).astype(np.float64)
    folds.flags.writeable = False
    return folds


def _mean(gains: Gains) -> Floats:
    """Return the gain [points] of prompts [n, points]."""
    return Gains(gains.numerator.sum(axis=0), gains.denominator.sum(axis=0)).value


def _above(figure: Interval) -> float:
    """Return the one-sided p of no lead against a lead."""
    return figure.p / 2 if figure.value > 0 else 1 - figure.p / 2
