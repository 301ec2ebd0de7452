"""95 % intervals of proportions: Wilson's for one, Tango's for paired differences.

The bootstrap fails for a proportion near 1: at a true accuracy of .986 and n = 20 it covers 25 %.
Means of scores that are all 0 or 1 therefore use Wilson's interval, and paired differences of such
means use Tango's, which also bounds differences of other scores if few prompts differ.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.analysis.statistics import intervals
from specbench.analysis.statistics.intervals import FEWEST, Floats, Interval, Side, ratio

POWER = 0.8  # with which a difference of ``ERRORS`` is shown
_Z = NormalDist().inv_cdf((1 + intervals.CONFIDENCE) / 2)
#: Standard errors between no difference and one that is shown with ``POWER``.
ERRORS = _Z + NormalDist().inv_cdf(POWER)


def proportion_interval(values: ArrayLike, clusters: ArrayLike) -> Interval:
    """Return a mean over samples in [0, 1] with Wilson's score interval (1927).

    The values are 0 or 1, or probabilities of 1; blank samples (NaN) are ignored. With repeats, n
    is an effective sample size between the number of prompts and the number of samples: that of
    independent samples whose mean has the variance estimated between prompts. If few prompts fail
    or have mixed results, this estimate is poor. It is therefore averaged with the variance of
    perfectly correlated repeats, which gets the weight of one prompt.
    """
    labels, sums = intervals.cluster_sums(*_counted(values, clusters))
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


def paired_difference(side: Side, base: Side) -> Interval:
    """Return the mean of a side's values minus that of a baseline's over their shared prompts.

    Blank samples are ignored. If prompts have equally many texts, with one score, 0 or 1, of each
    prompt and side, the interval is that of ``score_limits``; else that of ``unit_difference``.
    """
    sums, base_sums = intervals.paired_sums(_counted(*side), _counted(*base))
    means = ratio(sums), ratio(base_sums)
    equally_many = all(len({*of_side[:, 1]}) < 2 for of_side in (sums, base_sums))
    if equally_many and all(map(is_binary, means)):
        return unit_difference(*means)
    of_units = (intervals.unit_values(of_side, ratio) for of_side in (sums, base_sums))
    return with_rare_differences(unit_difference(*of_units), means[0] - means[1])


def unit_difference(values: Floats, base_values: Floats) -> Interval:
    """Return the mean of values of prompts [n] minus that of a baseline's.

    Values of 0 and 1 have Tango's interval, others that of ``mean_of_units``, which is wider if few
    prompts differ (``with_rare_differences``).
    """
    differences = values - base_values
    n, value = len(differences), float(differences.mean()) if len(differences) else float("nan")
    if n < FEWEST:
        return Interval(value, float("nan"), float("nan"), n)
    if is_binary(values) and is_binary(base_values):
        return _score_interval(differences)
    return with_rare_differences(intervals.mean_of_units(differences), differences)


def with_rare_differences(figure: Interval, differences: Floats) -> Interval:
    """Return the interval of a mean difference, wider if fewer than ``FEWEST`` prompts differ.

    So few cannot tell what a rare difference costs, and of equal values the interval is [0, 0]. It
    then contains that of ``score_limits`` too, which takes every difference as a possible loss of
    the whole score: equal scores of n prompts give about -3.84 / n to 3.84 / n.

    Args:
        figure: The mean difference with an interval.
        differences: [n] difference of each prompt, -1 to 1.
    """
    figure = figure._replace(low=max(figure.low, -1.0), high=min(figure.high, 1.0))  # NaN stays
    if not len(differences) >= FEWEST > np.count_nonzero(np.abs(differences) > intervals.ROUNDING):
        return figure
    scores = _score_interval(np.clip(differences, -1, 1))
    low, high = min(figure.low, scores.low), max(figure.high, scores.high)
    return figure._replace(low=low, high=high, p=max(figure.p, scores.p))


def _score_interval(differences: Floats) -> Interval:
    """Return the mean of differences with ``score_limits``, and p by the same test."""
    low, high = score_limits(differences)
    value, share = float(differences.mean()), float(np.abs(differences).mean())
    # At no difference, the test's variance is the share of prompts that differ.
    score = value / np.sqrt(share / len(differences)) if share else 0.0
    p = 2 * NormalDist().cdf(-abs(float(score)))
    return Interval(value, float(low), float(high), len(differences), p)


def score_limits(differences: Floats) -> tuple[Floats, Floats]:
    """Return limits [...] of paired differences of proportions: Tango's score interval (1998).

    The fractions of better and worse prompts are the mean positive and negative differences. With
    one sample per prompt and side the interval is exactly Tango's.

    Args:
        differences: [n, ...] difference of each prompt, -1 to 1.
    """
    n = len(differences)
    better = np.maximum(differences, 0).mean(axis=0)
    worse = np.maximum(-differences, 0).mean(axis=0)
    return _lower_limit(better, worse, n), -_lower_limit(worse, better, n)


def _lower_limit(better: Floats, worse: Floats, n: int) -> Floats:
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


def smallest_shown(figure: Interval) -> float:
    """Return the difference that a measurement with this interval shows with ``POWER``."""
    return (figure.high - figure.low) / 2 * ERRORS / _Z


def is_binary(values: ArrayLike) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())


def _counted(values: ArrayLike, clusters: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    """Return the values that are not blank, each with a count of 1 [known, 2], and clusters."""
    numbers = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(numbers)
    counted = np.column_stack([numbers[present], np.ones(present.sum())])
    return counted, np.asarray(clusters)[present]
