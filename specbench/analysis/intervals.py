"""Percentile bootstrap over prompts.

Every statistic of specbench is a function of totals over samples: a mean is a sum over a count, a
pooled rate a sum over a sum, a speed-up a ratio of two of these. So samples are summed per prompt
once, and one bootstrap resample is one row of a count matrix times these sums. Repeats of a prompt
stay together (they are not independent), and statistics of several methods that were run on the
same prompts are resampled with the same counts, which makes their comparison a paired one.

An interval covers the choice of prompts and the draws of the run. It does not cover the hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0


class Interval(NamedTuple):
    """A value with its 95 % interval; NaN where there is none (one prompt, or no data at all)."""

    value: float
    low: float
    high: float
    n: int  # prompts


def cluster_sums(terms: ArrayLike, clusters: ArrayLike) -> tuple[NDArray[Any], Floats]:
    """Sum samples per cluster.

    Args:
        terms: [samples, k] what is summed.
        clusters: [samples] label of each sample's cluster (the prompt's id).

    Returns:
        [n] the distinct labels, sorted, and [n, k] the sums of each.
    """
    labels, member = np.unique(np.asarray(clusters), return_inverse=True)
    values = np.asarray(terms, dtype=np.float64)
    sums = np.zeros((len(labels), values.shape[1]))
    np.add.at(sums, member, values)
    return labels, sums


def resample(sums: Floats) -> Floats:
    """Totals of ``RESAMPLES`` bootstrap draws of the clusters.

    Args:
        sums: [n, ...] sums per cluster.

    Returns:
        [RESAMPLES, ...] totals; equal ``n`` means equal draws, whatever is summed.
    """
    n = len(sums)
    return (_draws(n) @ sums.reshape(n, -1)).reshape(-1, *sums.shape[1:])


def bootstrap(sums: Floats) -> Floats:
    """[1 + RESAMPLES, ...] totals: those of the data itself, then those of ``resample``.

    What a statistic makes of them is what ``estimate`` takes.

    Args:
        sums: [n, ...] sums per cluster, n at least 1.
    """
    return np.concatenate([sums.sum(axis=0, keepdims=True), resample(sums)])


def estimate(values: Floats, n: int) -> Interval:
    """A statistic with its interval.

    Args:
        values: [1 + RESAMPLES] the statistic of each row of ``bootstrap``.
        n: Clusters. One cluster says nothing about the spread between clusters, so its interval
            is NaN.
    """
    low, high = percentiles(values[1:]) if n > 1 else (float("nan"), float("nan"))
    return Interval(float(values[0]), low, high, n)


def percentiles(values: Floats) -> tuple[float, float]:
    """The 2.5 % and 97.5 % percentiles of bootstrap values, undefined ones (NaN) left out."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(defined, [tail, 100 - tail])
    return float(low), float(high)


def interval(sums: Floats, statistic: Statistic) -> Interval:
    """A statistic of totals with its bootstrap interval.

    Args:
        sums: [n, k] sums per cluster.
        statistic: Maps totals [..., k] to values [...].

    Returns:
        The statistic of all samples with its interval, as from ``estimate``; NaN of no samples.
    """
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
    """Sum over sum, pooled over samples; blank samples and zero denominators left out.

    Args:
        numerator: [samples], NaN where blank.
        denominator: [samples], the weight of each sample.
        clusters: [samples] prompt ids.
    """
    terms = np.column_stack(
        [np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)]
    )
    kept = ~np.isnan(terms).any(axis=1) & (terms[:, 1] > 0)
    _, sums = cluster_sums(terms[kept], np.asarray(clusters)[kept])
    return interval(sums, ratio)


def mean_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Mean over samples; blank samples (NaN) left out."""
    values = np.asarray(values, dtype=np.float64)
    return ratio_interval(values, np.ones_like(values), clusters)


def paired_ratio_interval(
    terms: ArrayLike, clusters: ArrayLike, base_terms: ArrayLike, base_clusters: ArrayLike
) -> Interval:
    """Ratio of two pooled ratios over the prompts that both sides have, resampled jointly.

    Args:
        terms: [samples, 2] numerator and denominator.
        clusters: [samples] prompt ids.
        base_terms: [base samples, 2] the same of what is compared with.
        base_clusters: [base samples] its prompt ids.
    """
    return paired_interval(terms, clusters, base_terms, base_clusters, paired_ratio)


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
        statistic: Maps totals [..., k + m] to values [...].
    """
    labels, sums = cluster_sums(terms, clusters)
    base_labels, base_sums = cluster_sums(base_terms, base_clusters)
    _, mine, theirs = np.intersect1d(labels, base_labels, return_indices=True)
    return interval(np.hstack([sums[mine], base_sums[theirs]]), statistic)


@lru_cache(maxsize=2)
def _draws(n: int) -> Floats:
    """How often each of ``n`` clusters is drawn in each resample: [RESAMPLES, n], rows sum to n."""
    counts = np.random.default_rng(SEED).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    draws: Floats = counts.astype(np.float64)
    draws.flags.writeable = False
    return draws
