"""Tests for the faults of a sampler itself: another temperature, and filters left on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, pearson3
from torch import Tensor

from specbench.proofs.draws import POWER

TOP_K, TOP_P, MIN_P = "top-k", "top-p", "min-p"
# From strict to mild; a stricter filter than one of these is seen like that one.
FILTERS = (
    *((TOP_K, value) for value in (5, 20, 50, 100)),
    *((TOP_P, value) for value in (0.5, 0.8, 0.9, 0.95, 0.99)),
    *((MIN_P, value) for value in (0.2, 0.1, 0.05, 0.02)),
)
MANY = 50  # expected tokens from which their count is nearly normal
Floats = NDArray[np.float64]


class Temperature(NamedTuple):
    """The result of the score test for the temperature; relative to the temperature asked for."""

    draws: int
    p_value: float  # two-sided
    estimate: float
    error: float  # standard error of the estimate
    visible: float  # relative difference that is seen with probability ``POWER``


class Filters(NamedTuple):
    """The result of one-sided tests for tokens that a filter would have cut off."""

    draws: int
    p_value: float  # smallest of all filters, times their number
    likeliest: tuple[str, float]  # the filter with the smallest p-value
    seen: int  # tokens that it would have cut off
    expected: float  # number of these tokens without the filter
    visible: dict[str, float]  # mildest filter of each kind that would have been seen


class Distortions:
    """Draws in many contexts, summed up for tests of temperature and filters."""

    def __init__(self) -> None:
        # [3, K] log p - E log p of the draw, its variance, and its third central moment
        self._scores: list[Floats] = []
        self._tails: list[Floats] = []  # [F, 2, K] mass that a filter cuts off; whether drawn there

    def add(self, law: Tensor, tokens: Tensor) -> None:
        """Add draws ``[K]`` from laws ``[K, V]`` in float64."""
        logs = law.clamp_min(torch.finfo(law.dtype).tiny).log()
        mean, variance = log_moments(law)
        third = (law * (logs - mean[:, None]) ** 3).sum(-1)
        drawn = tokens[:, None]
        score = logs.gather(-1, drawn)[:, 0] - mean
        self._scores.append(torch.stack((score, variance, third)).cpu().numpy())
        ordered = law.sort(-1, descending=True).values
        below = law.gather(-1, drawn)
        tails = []
        for kind, value in FILTERS:
            least = least_kept(ordered, kind, value)
            tails.append(torch.stack(((law * (law < least)).sum(-1), (below < least)[:, 0])))
        self._tails.append(torch.stack(tails).cpu().numpy())

    def temperature(self, alpha: float) -> Temperature:
        """Test at a probability of a false alarm.

        At temperature (1 + d) T the mean of log p is lower by d times its variance, to first order.
        The sum of log p has a longer tail to the left; Pearson's type III curve has its skewness.
        """
        scores = np.concatenate([np.zeros((3, 0)), *self._scores], axis=1)
        total, information, third = scores.sum(1)
        if not information:
            return Temperature(scores.shape[1], 1.0, 0.0, float("inf"), float("inf"))
        error = float(information**-0.5)
        law = pearson3(third * error**3)
        p_value = float(min(1, 2 * min(law.cdf(total * error), law.sf(total * error))))
        visible = float((norm.isf(alpha / 2) + norm.ppf(POWER)) * error)
        return Temperature(scores.shape[1], p_value, float(-total * error**2), error, visible)

    def filters(self, alpha: float) -> Filters:
        """Test at a probability of a false alarm for all filters together."""
        tails = np.concatenate([np.zeros((len(FILTERS), 2, 0)), *self._tails], axis=2)
        seen, expected = tails[:, 1].sum(1).astype(int), tails[:, 0].sum(1)
        p_values = lower_tails(tails[:, 0], seen)
        least = int(p_values.argmin())
        # A filter that is on leaves no token behind it.
        unseen = np.exp(np.log1p(-tails[:, 0].clip(0, 1 - 1e-12)).sum(1))
        visible = {}
        for (kind, value), p_value in zip(FILTERS, unseen, strict=True):
            if p_value * len(FILTERS) < alpha:
                visible[kind] = value
        return Filters(
            tails.shape[2],
            min(1.0, float(p_values[least]) * len(FILTERS)),
            FILTERS[least],
            int(seen[least]),
            float(expected[least]),
            visible,
        )


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
    counts = np.zeros((int(few.sum()), 1 + int(seen[few].max(initial=0))))
    counts[:, 0] = 1
    for mass in masses[few].T[..., None]:
        counts[:, 1:] = counts[:, 1:] * (1 - mass) + counts[:, :-1] * mass
        counts[:, :1] *= 1 - mass
    within = np.arange(counts.shape[1]) <= seen[few, None]
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
