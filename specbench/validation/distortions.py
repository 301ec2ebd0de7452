"""Tests for the faults of a sampler itself: another temperature, and filters left on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, pearson3
from torch import Tensor

from specbench.runs.table import percent
from specbench.validation.draws import POWER
from specbench.validation.findings import Judgement, judged

TOP_K, TOP_P, MIN_P = "top-k", "top-p", "min-p"
# From strict to mild; a stricter filter than one of these is seen like that one.
FILTERS = (
    *((TOP_K, value) for value in (5, 20, 50, 100)),
    *((TOP_P, value) for value in (0.5, 0.8, 0.9, 0.95, 0.99)),
    *((MIN_P, value) for value in (0.2, 0.1, 0.05, 0.02)),
)
MANY = 50  # expected tokens from which their count is nearly normal
Floats = NDArray[np.float64]


class TemperatureScore:
    """The score test for another temperature than the one asked for.

    At temperature (1 + d) T the mean of log p is lower by d times its variance, to first order. The
    sum of log p has a longer tail to the left; Pearson's type III curve has its skewness.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        # [3, K] log p - E log p of the draw, its variance, and its third central moment
        self._scores: list[Floats] = [np.zeros((3, 0))]

    def add(self, law: Tensor, tokens: Tensor) -> None:
        """Add draws ``[K]`` from laws ``[K, V]`` in float64."""
        logs = law.clamp_min(torch.finfo(law.dtype).tiny).log()
        mean, variance = log_moments(law)
        third = (law * (logs - mean[:, None]) ** 3).sum(-1)
        score = logs.gather(-1, tokens[:, None])[:, 0] - mean
        self._scores.append(torch.stack((score, variance, third)).cpu().numpy())

    def judge(self, alpha: float) -> Judgement:
        """Test all draws so far, on both sides, at a probability of a false alarm."""
        scores = np.concatenate(self._scores, axis=1)
        total, information, third = scores.sum(1)
        p_value, estimate, error, visible = 1.0, 0.0, float("inf"), float("inf")
        if information:
            error = float(information**-0.5)
            law = pearson3(third * error**3)
            p_value = float(min(1, 2 * min(law.cdf(total * error), law.sf(total * error))))
            estimate = float(-total * error**2)
            visible = float((norm.isf(alpha / 2) + norm.ppf(POWER)) * error)
        sentence = (
            f"{scores.shape[1]:,} draws, p = {p_value:.2g}; notices {percent(visible, '.1f')}"
        )
        if p_value < alpha:
            low = self._temperature * (1 + estimate - 1.96 * error)
            high = self._temperature * (1 + estimate + 1.96 * error)
            sentence += f"; the texts look like T={low:.3g} to {high:.3g}"
        facts = {
            "draws": scores.shape[1],
            "p_value": p_value,
            "estimate": estimate,  # of the difference, relative to the temperature asked for
            "error": error,  # standard error of the estimate
            "visible": visible,  # relative difference that is seen with probability ``POWER``
            "alpha": alpha,
        }
        return judged(p_value < alpha, visible >= 1, sentence, facts)


class FilteredTails:
    """One-sided tests for tokens that a filter would have cut off."""

    def __init__(self) -> None:
        # [F, 2, K] mass that a filter cuts off; whether the draw is there
        self._tails: list[Floats] = [np.zeros((len(FILTERS), 2, 0))]

    def add(self, law: Tensor, tokens: Tensor) -> None:
        """Add draws ``[K]`` from laws ``[K, V]`` in float64."""
        ordered = law.sort(-1, descending=True).values
        drawn = law.gather(-1, tokens[:, None])
        tails = []
        for kind, value in FILTERS:
            least = least_kept(ordered, kind, value)
            tails.append(
                torch.stack((torch.where(law < least, law, 0).sum(-1), (drawn < least)[:, 0]))
            )
        self._tails.append(torch.stack(tails).cpu().numpy())

    def judge(self, alpha: float) -> Judgement:
        """Test at a probability of a false alarm for all filters together."""
        tails = np.concatenate(self._tails, axis=2)
        seen, expected = tails[:, 1].sum(1).astype(int), tails[:, 0].sum(1)
        p_values = lower_tails(tails[:, 0], seen)
        least = int(p_values.argmin())
        p_value = min(1.0, float(p_values[least]) * len(FILTERS))
        # A filter that is on leaves no token behind it.
        unseen = np.exp(np.log1p(-tails[:, 0].clip(0, 1 - 1e-12)).sum(1))
        visible = {}  # mildest filter of each kind that would have been seen
        for (kind, value), probability in zip(FILTERS, unseen, strict=True):
            if probability * len(FILTERS) < alpha:
                visible[kind] = value
        sentence = f"{tails.shape[2]:,} draws, p = {p_value:.2g}"
        sentence += f"; notices {listed_filters(visible)}" if visible else ""
        if p_value < alpha:
            kind, value = FILTERS[least]
            sentence += (
                f"; {seen[least]} of {expected[least]:.1f} expected tokens are beyond {kind} "
                f"{value:g}: is a filter on?"
            )
        facts = {
            "draws": tails.shape[2],
            "p_value": p_value,  # smallest of all filters, times their number
            "likeliest": FILTERS[least],  # the filter with the smallest p-value
            "seen": int(seen[least]),  # tokens that it would have cut off
            "expected": float(expected[least]),  # number of these tokens without the filter
            "visible": visible,
            "alpha": alpha,
        }
        return judged(p_value < alpha, not visible, sentence, facts)


def listed_filters(filters: Mapping[str, float]) -> str:
    """Return filters in words, such as "top-k 20, min-p 0.02"."""
    return ", ".join(f"{kind} {value:g}" for kind, value in filters.items())


def log_moments(law: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of log p of a draw from laws ``[..., V]``."""
    logs = law.clamp_min(torch.finfo(law.dtype).tiny).log()
    mean = (law * logs).sum(-1)
    return mean, (law * (logs - mean[..., None]) ** 2).sum(-1)


def lower_tails(masses: Floats, seen: NDArray[np.int64]) -> Floats:
    """Return probabilities ``[F]`` of at most so many events as seen.

    Events are independent with probabilities ``[F, K]``. The number of many events is taken as
    normal, which is conservative here: the left tail of a count of rare events is lighter.
    """
    mean = masses.sum(1)
    error = np.sqrt((masses * (1 - masses)).sum(1))
    tails = norm.cdf((seen + 0.5 - mean) / np.maximum(error, 1e-12))
    few = mean <= MANY
    # The first column stays 0: no count is below 0.
    counts = np.zeros((int(few.sum()), 2 + int(seen[few].max(initial=0))))
    counts[:, 1] = 1
    for mass in masses[few].T[..., None]:
        counts[:, 1:] -= mass * np.diff(counts)
    within = np.arange(counts.shape[1]) <= 1 + seen[few, None]
    tails[few] = (counts * within).sum(1)
    return np.asarray(np.clip(tails, 0, 1))


def least_kept(ordered: Tensor, kind: str, value: float) -> Tensor:
    """Return the smallest probability ``[K, 1]`` that a filter keeps, of sorted laws."""
    if kind == MIN_P:
        return value * ordered[:, :1]
    last = ordered.shape[-1] - 1
    if kind == TOP_K:
        return ordered[:, [min(int(value) - 1, last)]]
    crossing = (ordered.cumsum(-1) < value).sum(-1, keepdim=True)
    return ordered.gather(-1, crossing.clamp_max(last))
