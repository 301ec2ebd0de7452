"""Intervals over prompts: score intervals of proportions, and the percentile bootstrap of the rest.

The bootstrap collapses for a proportion near 1: with a true accuracy of .986 it covers 25 % at
n = 20. So means of scores that are all 0 or 1 get Wilson's interval, and paired differences of such
means get Tango's.

Every other statistic of specbench is a function of totals over samples: a mean is a sum over a
count, a pooled rate a sum over a sum, a speed-up a ratio of two of these. So samples are summed per
prompt once, and one bootstrap resample is one row of a count matrix times these sums. Repeats of a
prompt stay together (they are not independent), and statistics of several methods that were run on
the same prompts are resampled with the same counts, which makes their comparison a paired one.

An interval covers the choice of prompts and the draws of the run, not the hardware. Over fewer than
``FEWEST`` prompts there is none: no method here holds at so few.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0
FEWEST = 10  # prompts that an interval needs
_ENDS = 50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)  # percentiles
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Interval(NamedTuple):
    """A value with its 95 % interval, which is NaN below ``FEWEST`` prompts."""

    value: float
    low: float
    high: float
    n: int  # prompts


def cluster_sums(terms: ArrayLike, clusters: ArrayLike) -> tuple[NDArray[Any], Floats]:
    """Sum ``terms`` [samples, k] per cluster: [n] the labels, sorted, and [n, k] their sums."""
    labels, member = np.unique(np.asarray(clusters), return_inverse=True)
    values = np.asarray(terms, dtype=np.float64)
    sums = np.zeros((len(labels), values.shape[1]))
    np.add.at(sums, member, values)
    return labels, sums


def resample(sums: Floats) -> Floats:
    """[RESAMPLES, ...] totals of bootstrap draws of ``sums`` [n, ...]; equal n, equal draws."""
    n = len(sums)
    return (_draws(n, RESAMPLES) @ sums.reshape(n, -1)).reshape(-1, *sums.shape[1:])


def bootstrap(sums: Floats) -> Floats:
    """[1 + RESAMPLES, ...] totals of ``sums`` [n, ...]: of the data, then of ``resample``."""
    return np.concatenate([sums.sum(axis=0, keepdims=True), resample(sums)])


def estimate(values: Floats, n: int) -> Interval:
    """A statistic over n clusters, whose ``values`` [1 + RESAMPLES] ``bootstrap`` gave."""
    low, high = percentiles(values[1:]) if n >= FEWEST else (float("nan"), float("nan"))
    return Interval(float(values[0]), low, high, n)


def percentiles(values: Floats) -> tuple[float, float]:
    """The 2.5 % and 97.5 % percentiles of bootstrap values, undefined ones (NaN) left out."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.percentile(defined, _ENDS)
    return float(low), float(high)


def interval(sums: Floats, statistic: Statistic) -> Interval:
    """A statistic of totals [..., k] of ``sums`` [n, k] per cluster; NaN of no samples."""
    if not len(sums):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    return estimate(statistic(bootstrap(sums)), len(sums))


def ratio(totals: Floats) -> Floats:
    """``a / b`` of totals [..., (a, b)]; NaN where b is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(totals[..., 1] != 0, totals[..., 0] / totals[..., 1], np.nan)


def paired_ratio(totals: Floats) -> Floats:
    """``(a / b) / (c / d)`` of totals [..., (a, b, c, d)]; NaN where it is not defined."""
    rates = np.stack([ratio(totals[..., :2]), ratio(totals[..., 2:])], axis=-1)
    return ratio(rates)


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike) -> Interval:
    """Sum over sum of samples; those that are blank or have a denominator of 0 are left out."""
    terms = np.column_stack([numerator, denominator]).astype(np.float64)
    kept = ~np.isnan(terms).any(axis=1) & (terms[:, 1] > 0)
    _, sums = cluster_sums(terms[kept], np.asarray(clusters)[kept])
    return interval(sums, ratio)


def mean_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Mean over samples; blank samples (NaN) left out."""
    return ratio_interval(values, np.ones(np.shape(values)), clusters)


def proportion_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Mean over samples that are 0 or 1, or chances of 1; blank samples (NaN) left out.

    It is Wilson's score interval (1927). With repeats its n is an effective one between the number
    of prompts and that of samples: the number of independent samples whose mean has the variance
    found between prompts. Where few prompts are mixed or fail, that variance is hardly known, so it
    is averaged with the one of repeats that always agree, as if one prompt more had shown that.
    """
    labels, sums = cluster_sums(*_counted(values, clusters))
    n, (total, count) = len(labels), sums.sum(axis=0)
    mean = total / count if n else float("nan")
    if n < FEWEST:
        return Interval(float(mean), float("nan"), float("nan"), n)
    seen = min(np.sum(sums[:, 0] < sums[:, 1]), np.sum(sums[:, 0] > 0))  # prompts that tell
    found = n / (n - 1) * np.sum((sums[:, 0] - mean * sums[:, 1]) ** 2) / count**2
    agreeing = mean * (1 - mean) / n
    variance = (seen * found + agreeing) / (seen + 1)
    effective = float(np.clip(n * agreeing / variance, n, count)) if variance > 0 else float(n)
    centre = mean + _Z**2 / (2 * effective)
    half = _Z * np.sqrt(mean * (1 - mean) / effective + _Z**2 / (4 * effective**2))
    low, high = (centre + np.array([-half, half])) / (1 + _Z**2 / effective)
    return Interval(float(mean), float(min(low, mean)), float(max(high, mean)), n)


def paired_difference(
    values: ArrayLike, clusters: ArrayLike, base_values: ArrayLike, base_clusters: ArrayLike
) -> Interval:
    """Mean of ``values`` minus mean of ``base_values``, over the prompts that both sides have.

    Blank samples are left out. Where all values are 0 or 1 a prompt counts once, with the mean of
    its repeats, and the interval is that of ``score_limits``; otherwise it is the bootstrap's.
    """
    own, base = _counted(values, clusters), _counted(base_values, base_clusters)
    if not all(is_binary(terms) for terms, _ in (own, base)):
        return paired_interval(*own, *base, _difference)
    sums, base_sums = _paired_sums(*own, *base)
    differences = ratio(sums) - ratio(base_sums)
    n, value = len(differences), float(differences.mean()) if len(differences) else float("nan")
    if n < FEWEST:
        return Interval(value, float("nan"), float("nan"), n)
    low, high = score_limits(differences, min(sums[:, 1].sum(), base_sums[:, 1].sum()))
    return Interval(value, float(low), float(high), n)


def difference_limits(
    sums: Floats, base_sums: Floats, statistic: Statistic
) -> tuple[Floats, Floats]:
    """Bootstrap limits [k] of the differences of a statistic between k sides and another.

    ``sums`` [n, k, terms] and ``base_sums`` [n, 1, terms] are per prompt; the statistic is defined
    for all totals.
    """
    found = statistic(resample(sums)) - statistic(resample(base_sums))
    low, high = np.percentile(found, _ENDS, axis=0)
    return low, high


def score_limits(differences: Floats, samples: ArrayLike) -> tuple[Floats, Floats]:
    """Limits [...] of paired differences of proportions, by Tango's score interval (1998).

    Of one sample a prompt and side they are Tango's. With repeats the shares of prompts that are
    better and worse are the mean positive and negative differences, and n is an effective one
    between the number of prompts and that of samples, found from the variance between prompts.

    Args:
        differences: [n, ...] difference of each prompt, -1 to 1.
        samples: [...] how many samples the side with fewer has.
    """
    n = len(differences)
    better, worse = (np.maximum(sign * differences, 0).mean(axis=0) for sign in (1, -1))
    alone = (better + worse - (better - worse) ** 2) / n
    found = differences.var(axis=0, ddof=1) / n
    effective = n * np.divide(alone, found, out=np.ones_like(alone), where=found > 0)
    effective = np.clip(effective, n, samples)
    return _lower_limit(better, worse, effective), -_lower_limit(worse, better, effective)


def _lower_limit(better: Floats, worse: Floats, n: Floats) -> Floats:
    """The smallest difference that Tango's test does not reject, by bisection."""
    value = better - worse
    low, high = np.full_like(value, -1.0), value.copy()
    for _ in range(50):
        at = (low + high) / 2
        # The share of worse prompts that is the most likely, were ``at`` the difference.
        linear = (2 - value) * at - better - worse
        share = (np.sqrt(linear**2 + 8 * worse * at * (1 - at)) - linear) / 4
        variance = np.maximum(2 * share + at * (1 - at), 0) / n
        rejected = value - at > _Z * np.sqrt(variance)
        low, high = np.where(rejected, at, low), np.where(rejected, high, at)
    return high


def is_binary(values: ArrayLike) -> bool:
    """True where all values are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())


def _counted(values: ArrayLike, clusters: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    """[known, 2] values that are not blank, each beside a 1, and their clusters."""
    numbers = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(numbers)
    return np.column_stack([numbers[known], np.ones(known.sum())]), np.asarray(clusters)[known]


def paired_interval(
    terms: ArrayLike,
    clusters: ArrayLike,
    base_terms: ArrayLike,
    base_clusters: ArrayLike,
    statistic: Statistic,
) -> Interval:
    """A statistic of two sides over the prompts that both have, resampled jointly.

    Args:
        terms: [samples, k] what is summed on one side.
        clusters: [samples] prompt ids.
        base_terms: [base samples, m] what is summed on the other side.
        base_clusters: [base samples] its prompt ids.
        statistic: Maps totals [..., k + m] of both sides to values [...].
    """
    return interval(np.hstack(_paired_sums(terms, clusters, base_terms, base_clusters)), statistic)


def _paired_sums(
    terms: ArrayLike, clusters: ArrayLike, base_terms: ArrayLike, base_clusters: ArrayLike
) -> tuple[Floats, Floats]:
    """Sums per cluster of two sides, over the clusters that both have."""
    labels, sums = cluster_sums(terms, clusters)
    base_labels, base_sums = cluster_sums(base_terms, base_clusters)
    _, own, base = np.intersect1d(labels, base_labels, return_indices=True)
    return sums[own], base_sums[base]


def _difference(totals: Floats) -> Floats:
    """``a / b - c / d`` of totals [..., (a, b, c, d)]."""
    return ratio(totals[..., :2]) - ratio(totals[..., 2:])


@lru_cache(maxsize=2)
def _draws(n: int, resamples: int) -> Floats:
    """[resamples, n] how often each of n clusters is drawn; rows sum to n."""
    counts = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=resamples)
    draws: Floats = counts.astype(np.float64)
    draws.flags.writeable = False
    return draws
