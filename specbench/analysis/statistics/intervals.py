"""95 % intervals over prompts, by the bootstrap or by Student's t; see ``proportions`` for shares.

Every statistic of specbench is a function of totals over samples: a mean is a sum over a
count, a pooled rate is a sum over a sum, and a speed-up is a ratio of two of these. Samples are
summed per prompt once, and a bootstrap resample is a row of a count matrix times these sums.
Repeats of a prompt stay together, since they are not independent. Methods run on the same prompts
are resampled with the same counts, which makes their comparison paired.

Below ``LARGE`` prompts, percentiles of the resamples exclude the truth up to three times as often
as they say (page *statistics*). Student's t with the standard deviation of the resamples replaces
them there. A mean of one value per prompt needs no resamples: it has Student's t, and on the side
of a long tail a limit that allows for more of the values there (``mean_of_units``).

An interval covers the choice of prompts and the random draws of the run, not the hardware. Below
``FEWEST`` prompts no interval is given, since no method here reaches its coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
Side = tuple[ArrayLike, ArrayLike]  # terms or values of samples, and the prompts of these

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0
ROUNDING = 1e-12  # relative to 1: resamples of equal values differ by less
FEWEST = 10  # prompts required for an interval
LARGE = 100  # prompts from which percentiles are used; Student's t adds less than 2 % of the width
SKEWED = 1.0  # skewness of values from which the limit on the side of the tail is another one
_ENDS = 50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)  # percentiles


class Interval(NamedTuple):
    """A value with its 95 % interval, which is NaN below ``FEWEST`` prompts."""

    value: float
    low: float
    high: float
    n: int  # prompts
    p: float = float("nan")  # two-sided, of no difference, by the distribution of the interval
    least: float = float("nan")  # of a lead: the one over the best mixture of the same prompts


UNKNOWN = Interval(float("nan"), float("nan"), float("nan"), 0)


def cluster_sums(terms: ArrayLike, clusters: ArrayLike) -> tuple[NDArray[Any], Floats]:
    """Sum ``terms`` [samples, k] per cluster; return sorted labels [n] and sums [n, k]."""
    labels, member = np.unique(np.asarray(clusters), return_inverse=True)
    values = np.asarray(terms, dtype=np.float64)
    sums = np.zeros((len(labels), values.shape[1]))
    np.add.at(sums, member, values)
    return labels, sums


def bootstrap(sums: Floats) -> Floats:
    """Return totals [1 + RESAMPLES, ...] of ``sums`` [n, ...]: of the data, then of resamples."""
    n = len(sums)
    draws = _draws(n, RESAMPLES).astype(np.float64)
    resampled = (draws @ sums.reshape(n, -1)).reshape(-1, *sums.shape[1:])
    return np.concatenate([sums.sum(axis=0, keepdims=True), resampled])


def estimate(values: Floats, n: int, *, log: bool = False) -> Interval:
    """Return the interval over n clusters of values [1 + RESAMPLES]; see ``limits`` for ``log``."""
    value, resampled = values[0], values[1:][~np.isnan(values[1:])]
    if n < FEWEST or not len(resampled):
        return Interval(float(value), float("nan"), float("nan"), n)
    low, high = limits(value, resampled, n, log=log)
    return Interval(float(value), float(low), float(high), n)


def limits(
    value: ArrayLike, resampled: Floats, n: int, *, log: bool = False
) -> tuple[Floats, Floats]:
    """Return the limits [...] of a value [...] from its resamples [RESAMPLES, ...] of n clusters.

    From ``LARGE`` clusters on they are percentiles. Below, they are the value plus and minus
    Student's t times the standard deviation of the resamples, corrected for its bias by n / (n - 1)
    and never beyond the smallest and the largest resample, so that a rate stays within 0 and 1.
    With ``log``, for positive ratios, this is done with logarithms: a / b and b / a then have the
    same interval.
    """
    if n >= LARGE:
        low, high = np.percentile(resampled, _ENDS, axis=0)
        return low, high
    if log:
        low, high = limits(np.log(value), np.log(resampled), n)
        return np.exp(low), np.exp(high)
    value, spread = np.asarray(value), resampled.std(axis=0) * np.sqrt(n / (n - 1))
    half = stdtrit(n - 1, (1 + CONFIDENCE) / 2) * spread
    low = np.maximum(value - half, resampled.min(axis=0))
    high = np.minimum(value + half, resampled.max(axis=0))
    constant = spread <= ROUNDING * np.abs(value).clip(min=1)
    # An index of () makes a number of an array without dimensions.
    return np.where(constant, value, low)[()], np.where(constant, value, high)[()]


def mean_over_seeds(values: Floats, n: int, *, log: bool = False) -> Interval:
    """Return the mean of a statistic over seeds, with seeds and prompts as random effects.

    Of one seed, the interval is that of ``estimate``.

    The variance of the mean is that of the seeds, ``s^2 / S``, which has the noise of each, plus
    that of the prompts: the bootstrap's variance of the mean less that noise. The interval is never
    narrower than that of the same heads on other prompts.

    Args:
        values: [1 + RESAMPLES, S] the statistic of each seed; resamples are paired by prompt.
        n: Number of prompts.
        log: Whether it is a positive ratio, which counts for one seed alone; see ``limits``.
    """
    mean, (_, seeds) = float(values[0].mean()), values.shape
    if seeds == 1:
        return estimate(values[:, 0], n, log=log)
    if n < FEWEST:
        return Interval(mean, float("nan"), float("nan"), n)
    resampled = values[1:]
    means = resampled.mean(axis=1)
    single = (resampled - means[:, None]).var(axis=0, ddof=1).sum() / (seeds - 1)
    between_seeds = values[0].var(ddof=1) / seeds
    of_these_heads = float(means.var(ddof=1))
    between_prompts = max(of_these_heads - single / seeds, 0.0)
    of_recipe = student(mean, n, (between_seeds, seeds - 1), (between_prompts, n - 1))
    of_heads = student(mean, n, (of_these_heads, n - 1))
    return of_recipe if of_recipe.high >= of_heads.high else of_heads


def student(value: float, n: int, *parts: tuple[float, int]) -> Interval:
    """Return the interval of an estimate whose error is a sum of independent terms.

    Args:
        value: The estimate.
        n: Number of prompts.
        parts: The variance of each term, and the degrees of freedom with which it is estimated.

    Source: Satterthwaite 1946, doi:10.2307/3002019.
    """
    variance = sum(term for term, _ in parts)
    if variance <= (ROUNDING * max(1.0, abs(value))) ** 2:
        return Interval(value, value, value, n, float(abs(value) <= ROUNDING))
    freedom = variance**2 / sum(term**2 / degrees for term, degrees in parts)
    error = np.sqrt(variance)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * error)
    p = 2 * float(stdtr(freedom, -abs(value) / error))
    return Interval(value, value - half, value + half, n, p)


def mean_of_units(values: Floats) -> Interval:
    """Return the mean of one value per prompt [n], such as a difference.

    The interval is Student's t. If the values have a long tail, as where a few answers fail, few
    prompts may show too little of it: on that side, the limit is that of ``limit_with_failures``
    with one more value as extreme as the most extreme one, if it is wider.
    """
    n, mean = len(values), float(np.mean(values)) if len(values) else float("nan")
    if n < FEWEST:
        return Interval(mean, float("nan"), float("nan"), n)
    figure = student(mean, n, (float(values.var(ddof=1)) / n, n - 1))
    spread = float(values.std())
    skewness = float(np.mean((values - mean) ** 3)) / spread**3 if figure.high > mean else 0.0
    if abs(skewness) <= SKEWED:
        return figure
    side = -np.sign(skewness)  # 1 if the long tail is that of low values
    means = side * _means_with_failure(side * values, -float(np.min(side * values)))
    beyond = min(1.0, 2 * float(np.mean(means <= 0 if mean > 0 else means >= 0)))
    p = max(figure.p, beyond) if side * mean > 0 else figure.p
    if side > 0:
        return figure._replace(low=min(figure.low, float(np.percentile(means, _ENDS[0]))), p=p)
    return figure._replace(high=max(figure.high, float(np.percentile(means, _ENDS[1]))), p=p)


def unit_values(sums: Floats, statistic: Statistic) -> Floats:
    """Return one value per unit whose mean is a statistic of totals.

    They are the values of the statistic's linear approximation at the totals; those of a mean of
    one sample per unit are the samples.

    Args:
        sums: [n, ..., k] terms of each unit.
        statistic: Maps totals [..., k] to values [...], whatever their scale.

    Source: the infinitesimal jackknife, Jaeckel 1972; here with a step of 1e-4.
    """
    n, totals, step = len(sums), sums.sum(axis=0), 1e-4
    value = statistic(totals)
    moved = statistic((1 - step) * totals + step * n * sums)
    values: Floats = value + (moved - value) / step
    centred: Floats = values + (value - values.mean(axis=0))
    return centred


def interval(sums: Floats, statistic: Statistic, *, log: bool = False) -> Interval:
    """Return the interval (``estimate``) of a statistic of totals [..., k], from sums [n, k]."""
    if not len(sums):
        return UNKNOWN
    return estimate(statistic(bootstrap(sums)), len(sums), log=log)


def ratio(totals: Floats) -> Floats:
    """Return ``a / b`` of totals [..., (a, b)]; NaN where b is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(totals[..., 1] != 0, totals[..., 0] / totals[..., 1], np.nan)


def paired_ratio(totals: Floats) -> Floats:
    """Return ``(a / b) / (c / d)`` of totals [..., (a, b, c, d)]; NaN where undefined."""
    rates = np.stack([ratio(totals[..., :2]), ratio(totals[..., 2:])], axis=-1)
    return ratio(rates)


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike) -> Interval:
    """Return a ratio of sums over samples; samples that are blank or have b = 0 are ignored."""
    terms = np.column_stack([numerator, denominator]).astype(np.float64)
    valid = ~np.isnan(terms).any(axis=1) & (terms[:, 1] > 0)
    _, sums = cluster_sums(terms[valid], np.asarray(clusters)[valid])
    return interval(sums, ratio)


def mean_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Return a mean over samples; blank samples (NaN) are ignored."""
    return ratio_interval(values, np.ones(np.shape(values)), clusters)


def limit_with_failures(differences: Floats, failure: float) -> float:
    """Return the lower limit of a mean difference, with failures that no prompt shows.

    A bootstrap of n prompts cannot draw what none of them shows, such as one answer in 100 that
    fails completely. Here, one more prompt fails, and all n + 1 get random weights that sum to 1.
    Of prompts without a loss, this is the limit of Clopper and Pearson for the share of failures
    times their size; of many prompts, it is the limit of a normal distribution.

    Args:
        differences: [n] difference of each prompt.
        failure: What a failure loses, at least 0.

    Source: Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean
    of a nonnegative variable", Mathematical Methods of Statistics 14.
    """
    return float(np.percentile(_means_with_failure(differences, failure), _ENDS[0]))


def _means_with_failure(differences: Floats, failure: float) -> Floats:
    """Return the means [RESAMPLES] of ``limit_with_failures``, one for each draw of the weights."""
    n, rng = len(differences), np.random.default_rng(SEED)
    weights = rng.standard_exponential((RESAMPLES, n))
    means = weights @ differences / weights.sum(axis=1)
    # The weight of the failure has the law Beta(1, n); its quantiles are taken instead of draws.
    quantiles = rng.permutation(np.arange(RESAMPLES) + 0.5) / RESAMPLES
    failing = 1 - (1 - quantiles) ** (1 / n)
    return np.asarray((1 - failing) * means - failing * failure)


def unseen_share(n: int) -> float:
    """Return the share of failures that n prompts without one cannot exclude (about 3.7 / n)."""
    return float(1 - (_ENDS[0] / 100) ** (1 / n))


def paired_interval(side: Side, base: Side, statistic: Statistic, *, log: bool = False) -> Interval:
    """Return the interval of a statistic of two sides over their shared prompts.

    Both sides are resampled jointly.

    Args:
        side: Terms [samples, k] and prompt ids [samples] of one side.
        base: Terms [base samples, m] and prompt ids of the other.
        statistic: Maps totals [..., k + m] of both sides to values [...].
        log: Whether the values are positive ratios, see ``limits``.
    """
    return interval(np.hstack(paired_sums(side, base)), statistic, log=log)


def paired_sums(side: Side, base: Side) -> tuple[Floats, Floats]:
    """Return the sums of two sides over each cluster that both have, [n, k] and [n, m]."""
    labels, sums = cluster_sums(*side)
    base_labels, base_sums = cluster_sums(*base)
    _, rows, base_rows = np.intersect1d(labels, base_labels, return_indices=True)
    return sums[rows], base_sums[base_rows]


def ratio_difference(totals: Floats) -> Floats:
    """Return ``a / b - c / d`` of totals [..., (a, b, c, d)]."""
    return ratio(totals[..., :2]) - ratio(totals[..., 2:])


@lru_cache(maxsize=64)  # drawing takes longer than all else; texts that end differ in number
def _draws(n: int, resamples: int) -> NDArray[np.uint16]:
    """Return how often each of n clusters is drawn [resamples, n]; rows sum to n."""
    counts = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=resamples)
    draws = counts.astype(np.uint16)
    draws.flags.writeable = False
    return draws
