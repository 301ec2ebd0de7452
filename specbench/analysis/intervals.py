"""95 % intervals over prompts: score intervals for proportions, the bootstrap otherwise.

The bootstrap fails for a proportion near 1: at a true accuracy of .986 and n = 20 it covers 25 %.
Means of scores that are all 0 or 1 therefore use Wilson's interval, and paired differences of such
means use Tango's.

Every other statistic of specbench is a function of totals over samples: a mean is a sum over a
count, a pooled rate is a sum over a sum, and a speed-up is a ratio of two of these. Samples are
summed per prompt once, and a bootstrap resample is a row of a count matrix times these sums.
Repeats of a prompt stay together, since they are not independent. Methods run on the same prompts
are resampled with the same counts, which makes their comparison paired.

Below ``LARGE`` prompts, percentiles of the resamples exclude the truth up to three times as often
as they say (page *statistics*). Student's t with the standard deviation of the resamples replaces
them there.

An interval covers the choice of prompts and the random draws of the run, not the hardware. Below
``FEWEST`` prompts no interval is given, since no method here reaches its coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0
ROUNDING = 1e-12  # relative to 1: resamples of equal values differ by less
FEWEST = 10  # prompts required for an interval
LARGE = 100  # prompts from which percentiles are used; Student's t adds less than 2 % of the width
_ENDS = 50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)  # percentiles
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Interval(NamedTuple):
    """A value with its 95 % interval, which is NaN below ``FEWEST`` prompts."""

    value: float
    low: float
    high: float
    n: int  # prompts


def cluster_sums(terms: ArrayLike, clusters: ArrayLike) -> tuple[NDArray[Any], Floats]:
    """Sum ``terms`` [samples, k] per cluster; return sorted labels [n] and sums [n, k]."""
    labels, member = np.unique(np.asarray(clusters), return_inverse=True)
    values = np.asarray(terms, dtype=np.float64)
    sums = np.zeros((len(labels), values.shape[1]))
    np.add.at(sums, member, values)
    return labels, sums


def resample(sums: Floats) -> Floats:
    """Return bootstrap totals [RESAMPLES, ...] of ``sums`` [n, ...]; the draws depend only on n."""
    n = len(sums)
    draws = _draws(n, RESAMPLES).astype(np.float64)
    return (draws @ sums.reshape(n, -1)).reshape(-1, *sums.shape[1:])


def bootstrap(sums: Floats) -> Floats:
    """Return totals [1 + RESAMPLES, ...] of ``sums`` [n, ...]: the data, then ``resample``."""
    return np.concatenate([sums.sum(axis=0, keepdims=True), resample(sums)])


def estimate(values: Floats, n: int, *, log: bool = False) -> Interval:
    """Return the interval of a statistic over n clusters from its values [1 + RESAMPLES].

    NaN among the resamples is ignored; see ``limits`` for ``log``.
    """
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


def estimate_of_heads(values: Floats, n: int, *, log: bool = False) -> Interval:
    """Return the interval of a statistic of one head, or of its mean over heads of one recipe.

    ``values`` are [1 + RESAMPLES, heads]; see ``estimate`` and ``mean_over_seeds``.
    """
    single = values.shape[1] == 1
    return estimate(values[:, 0], n, log=log) if single else mean_over_seeds(values, n)


def mean_over_seeds(values: Floats, n: int) -> Interval:
    """Return the mean of a statistic over seeds, with seeds and prompts as random effects.

    The variance of the mean has two parts: that of the seeds, ``s^2 / S``, which includes the noise
    that each seed has of its own on these prompts, and that of the prompts, which all seeds share.
    The second is the bootstrap's variance of the mean over seeds less the noise of single seeds,
    which the first part contains already. ``half_width`` adds both. If the seeds agree better than
    their noise allows, the sum is too small: the interval is never narrower than that of the same
    heads on other prompts.

    Args:
        values: [1 + RESAMPLES, S] the statistic of each seed; resamples are paired by prompt.
        n: Number of prompts.
    """
    mean, (_, seeds) = float(values[0].mean()), values.shape
    if n < FEWEST or seeds < 2:
        return Interval(mean, float("nan"), float("nan"), n)
    resampled = values[1:]
    means = resampled.mean(axis=1)
    single = (resampled - means[:, None]).var(axis=0, ddof=1).sum() / (seeds - 1)
    between_seeds = values[0].var(ddof=1) / seeds
    of_these_heads = float(means.var(ddof=1))
    between_prompts = max(of_these_heads - single / seeds, 0.0)
    half = half_width((between_seeds, seeds - 1), (between_prompts, n - 1))
    half = max(half, half_width((of_these_heads, n - 1)))
    return Interval(mean, mean - half, mean + half, n)


def half_width(*parts: tuple[float, int]) -> float:
    """Return half of the interval of a sum of independent terms, by Student's t.

    Args:
        parts: The variance of each term, and the degrees of freedom with which it is estimated.

    Source: Satterthwaite 1946, doi:10.2307/3002019.
    """
    variance = sum(term for term, _ in parts)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(term**2 / degrees for term, degrees in parts)
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(variance))


def interval(sums: Floats, statistic: Statistic, *, log: bool = False) -> Interval:
    """Return the interval (``estimate``) of a statistic of totals [..., k], from sums [n, k]."""
    if not len(sums):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
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


def proportion_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Return a mean over samples in [0, 1] with Wilson's score interval (1927).

    The values are 0 or 1, or probabilities of 1; blank samples (NaN) are ignored. With repeats, n
    is an effective sample size between the number of prompts and the number of samples: that of
    independent samples whose mean has the variance estimated between prompts. If few prompts fail
    or have mixed results, this estimate is poor. It is therefore averaged with the variance of
    perfectly correlated repeats, which gets the weight of one prompt.
    """
    labels, sums = cluster_sums(*_counted(values, clusters))
    n, (total, count) = len(labels), sums.sum(axis=0)
    mean = total / count if n else float("nan")
    if n < FEWEST:
        return Interval(float(mean), float("nan"), float("nan"), n)
    seen = min(np.sum(sums[:, 0] < sums[:, 1]), np.sum(sums[:, 0] > 0))  # informative prompts
    measured = n / (n - 1) * np.sum((sums[:, 0] - mean * sums[:, 1]) ** 2) / count**2
    agreeing = mean * (1 - mean) / n
    variance = (seen * measured + agreeing) / (seen + 1)
    effective = float(np.clip(n * agreeing / variance, n, count)) if variance > 0 else float(n)
    centre = mean + _Z**2 / (2 * effective)
    half = _Z * np.sqrt(mean * (1 - mean) / effective + _Z**2 / (4 * effective**2))
    low, high = (centre + np.array([-half, half])) / (1 + _Z**2 / effective)
    return Interval(float(mean), float(min(low, mean)), float(max(high, mean)), n)


def paired_difference(
    values: ArrayLike, clusters: ArrayLike, base_values: ArrayLike, base_clusters: ArrayLike
) -> Interval:
    """Return the mean of ``values`` minus that of ``base_values`` over their shared prompts.

    Blank samples are ignored. If all values are 0 or 1, each prompt counts once with the mean of
    its repeats and the interval is that of ``score_limits``; otherwise it is the bootstrap's.
    """
    counted, base_counted = _counted(values, clusters), _counted(base_values, base_clusters)
    if not all(is_binary(terms) for terms, _ in (counted, base_counted)):
        return paired_interval(*counted, *base_counted, ratio_difference)
    sums, base_sums = _paired_sums(*counted, *base_counted)
    differences = ratio(sums) - ratio(base_sums)
    n, value = len(differences), float(differences.mean()) if len(differences) else float("nan")
    if n < FEWEST:
        return Interval(value, float("nan"), float("nan"), n)
    low, high = score_limits(differences, min(sums[:, 1].sum(), base_sums[:, 1].sum()))
    return Interval(value, float(low), float(high), n)


def score_limits(differences: Floats, samples: ArrayLike) -> tuple[Floats, Floats]:
    """Return limits [...] of paired differences of proportions: Tango's score interval (1998).

    With one sample per prompt and side the interval is exactly Tango's. With repeats, the fractions
    of better and worse prompts are the mean positive and negative differences, and n is an
    effective sample size between the numbers of prompts and samples, estimated from the variance
    between prompts.

    Args:
        differences: [n, ...] difference of each prompt, -1 to 1.
        samples: [...] number of samples on the side with fewer.
    """
    n = len(differences)
    better = np.maximum(differences, 0).mean(axis=0)
    worse = np.maximum(-differences, 0).mean(axis=0)
    alone = (better + worse - (better - worse) ** 2) / n
    measured = differences.var(axis=0, ddof=1) / n
    effective = n * np.divide(alone, measured, out=np.ones_like(alone), where=measured > 0)
    effective = np.clip(effective, n, samples)
    return _lower_limit(better, worse, effective), -_lower_limit(worse, better, effective)


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
    n, rng = len(differences), np.random.default_rng(SEED)
    weights = rng.standard_exponential((RESAMPLES, n))
    means = weights @ differences / weights.sum(axis=1)
    # The weight of the failure has the law Beta(1, n); its quantiles are taken instead of draws.
    quantiles = rng.permutation(np.arange(RESAMPLES) + 0.5) / RESAMPLES
    failing = 1 - (1 - quantiles) ** (1 / n)
    return float(np.percentile((1 - failing) * means - failing * failure, _ENDS[0]))


def unseen_share(n: int) -> float:
    """Return the share of failures that n prompts without one cannot exclude (about 3.7 / n)."""
    return float(1 - (_ENDS[0] / 100) ** (1 / n))


def _lower_limit(better: Floats, worse: Floats, n: Floats) -> Floats:
    """Return the smallest difference that Tango's test does not reject, by bisection."""
    value = better - worse
    low, high = np.full_like(value, -1.0), value.copy()
    for _ in range(50):
        middle = (low + high) / 2
        # Maximum-likelihood fraction of worse prompts if the difference is ``middle``.
        linear = (2 - value) * middle - better - worse
        share = (np.sqrt(linear**2 + 8 * worse * middle * (1 - middle)) - linear) / 4
        variance = np.maximum(2 * share + middle * (1 - middle), 0) / n
        rejected = value - middle > _Z * np.sqrt(variance)
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return high


def is_binary(values: ArrayLike) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())


def _counted(values: ArrayLike, clusters: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    """Return the values that are not blank, each with a count of 1 [known, 2], and clusters."""
    numbers = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(numbers)
    return np.column_stack([numbers[present], np.ones(present.sum())]), np.asarray(clusters)[
        present
    ]


def paired_interval(
    terms: ArrayLike,
    clusters: ArrayLike,
    base_terms: ArrayLike,
    base_clusters: ArrayLike,
    statistic: Statistic,
    *,
    log: bool = False,
) -> Interval:
    """Return the interval of a statistic of two sides over their shared prompts.

    Both sides are resampled jointly.

    Args:
        terms: [samples, k] terms of one side.
        clusters: [samples] prompt ids.
        base_terms: [base samples, m] terms of the other side.
        base_clusters: [base samples] its prompt ids.
        statistic: Maps totals [..., k + m] of both sides to values [...].
        log: Whether the values are positive ratios, see ``limits``.
    """
    sums = np.hstack(_paired_sums(terms, clusters, base_terms, base_clusters))
    return interval(sums, statistic, log=log)


def _paired_sums(
    terms: ArrayLike, clusters: ArrayLike, base_terms: ArrayLike, base_clusters: ArrayLike
) -> tuple[Floats, Floats]:
    """Return the sums of two sides per shared cluster."""
    labels, sums = cluster_sums(terms, clusters)
    base_labels, base_sums = cluster_sums(base_terms, base_clusters)
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
