"""Tests of draws against their laws that do not flake, and what they would have seen.

A draw from a discrete law is turned into a number that is uniform if and only if it has that law,
whatever the law, so that draws in thousands of contexts are one sample of one distribution.
All randomness is seeded: what passes keeps passing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Chance of a false alarm in a whole check, shared evenly by its tests.
FALSE_ALARM = 1e-6
BINS, LEAST_EXPECTED = 16, 10
Numbers = NDArray[np.float64]
POWER_Z = 2.326  # one-sided 99 % of a normal distribution


class Outcome(NamedTuple):
    """What a test found.

    Attributes:
        draws: How many were tested.
        p_value: Of the draws, under the law.
        control: Of as many draws from a wrong law in the same contexts, which must be refused.
        share: About the smallest part of the draws whose coming from the wrong law would be seen 99
            times in 100; None where not even all of them would.
    """

    draws: int
    p_value: float
    control: float
    share: float | None


class Stream:
    """Draws in many contexts, each with its law and a wrong law.

    Tokens are ordered by how much likelier the wrong law makes them, so that no order would tell
    the two apart more surely.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._seen: list[Tensor] = []
        self._control: list[Tensor] = []

    def add(self, law: Tensor, wrong: Tensor, seen: Tensor) -> None:
        """Take in draws ``[K]`` from laws ``[K, V]`` in float64, beside wrong laws ``[K, V]``."""
        drawn = torch.searchsorted(
            wrong.cumsum(-1), self._uniform(wrong) * wrong.sum(-1, keepdim=True), right=True
        )
        drawn = drawn[:, 0].clamp_max(wrong.shape[-1] - 1)
        for found, tokens in ((self._seen, seen), (self._control, drawn)):
            found.append(uniform(law, wrong, tokens, self._uniform(law)[:, 0]).cpu())

    def outcome(self, alpha: float) -> Outcome:
        """Test all draws so far, with so much chance of a false alarm."""
        seen, control = (
            torch.cat(part or [torch.empty(0)]) for part in (self._seen, self._control)
        )
        bins = min(BINS, len(seen) // LEAST_EXPECTED)
        if bins < 2:
            return Outcome(len(seen), 1.0, 1.0, None)
        expected = [len(seen) / bins] * bins
        mine, theirs = (deviance(_counts(part, bins), expected) for part in (seen, control))
        freedom = bins - 1
        p_value, refused = tail(mine, freedom), tail(theirs, freedom)
        return Outcome(len(seen), p_value, refused, smallest_share(theirs, freedom, alpha))

    def _uniform(self, like: Tensor) -> Tensor:
        numbers = torch.from_numpy(self._random.random((len(like), 1)))
        return numbers.to(like.device)


class Counts:
    """Draws of one token in few contexts: the likeliest tokens one by one, the rest in parts."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._draws, self._freedom, self._seen, self._control = 0, 0, 0.0, 0.0

    def add(self, law: Tensor, wrong: Tensor, seen: Tensor) -> None:
        """Take in draws ``[K]`` that all have one law ``[V]``, beside a wrong law ``[V]``."""
        ours, theirs = law.cpu().numpy(), wrong.cpu().numpy()
        drawn = self._random.multinomial(len(seen), theirs / theirs.sum())
        counted = np.bincount(seen.cpu().numpy(), minlength=len(ours))
        expected = ours * len(seen)
        cells = _cells(expected)
        if (number := int(cells.max()) + 1) < 2:
            return

        def summed(numbers: Numbers) -> list[float]:
            return [float(n) for n in np.bincount(cells, numbers, number)]

        self._draws += len(seen)
        self._freedom += number - 1
        self._seen += deviance(summed(counted.astype(float)), summed(expected))
        self._control += deviance(summed(drawn.astype(float)), summed(expected))

    def outcome(self, alpha: float) -> Outcome:
        """Test all draws so far, with so much chance of a false alarm."""
        if not self._freedom:
            return Outcome(self._draws, 1.0, 1.0, None)
        p_value, refused = tail(self._seen, self._freedom), tail(self._control, self._freedom)
        share = smallest_share(self._control, self._freedom, alpha)
        return Outcome(self._draws, p_value, refused, share)


def uniform(law: Tensor, wrong: Tensor, seen: Tensor, chance: Tensor) -> Tensor:
    """Turn draws into numbers that are uniform in [0, 1] if they follow their laws.

    The law's mass of all tokens that come before the draw, and a random part of that of the draw
    and of those beside it. A draw without mass gives 1.

    Args:
        law: ``[K, V]``.
        wrong: ``[K, V]``; the smaller wrong / law, the earlier a token comes.
        seen: ``[K]`` the draws.
        chance: ``[K]`` uniform numbers.
    """
    ratio = torch.where(law > 0, wrong / law, torch.inf)
    mine = ratio.gather(-1, seen[:, None])
    before, beside = ((law * part).sum(-1) for part in (ratio < mine, ratio == mine))
    return before + chance * beside


def deviance(seen: Sequence[float], expected: Sequence[float]) -> float:
    """Return the likelihood-ratio chi-square G, whose far tail is right where Pearson's is not."""
    return 2 * sum(o * math.log(o / e) for o, e in zip(seen, expected, strict=True) if o > 0)


def tail(statistic: float, freedom: int) -> float:
    """Return the probability of at least this chi-square."""
    half = torch.tensor([freedom / 2, max(statistic, 0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def smallest_share(control: float, freedom: int, alpha: float) -> float | None:
    """Return about the smallest part of wrong draws that would be refused 99 times in 100.

    Args:
        control: The statistic of wrong draws alone; it grows with the square of their part.
        freedom: Its degrees of freedom.
        alpha: Chance of a false alarm.
    """
    if control <= freedom:
        return None
    critical = _solve(lambda x: tail(x, freedom) - alpha)
    # A noncentral chi-square has the mean df + c and the variance 2 (df + 2 c).
    needed = _solve(lambda c: critical - freedom - c + POWER_Z * math.sqrt(2 * (freedom + 2 * c)))
    share = math.sqrt(needed / (control - freedom))
    return share if share <= 1 else None


def _cells(expected: Numbers) -> NDArray[np.int64]:
    """Return a cell for every token, each expected often enough: one alone, or with rarer ones."""
    order = np.argsort(-expected)
    ordered = expected[order]
    alone = int((ordered >= LEAST_EXPECTED).sum())
    rest = ordered[alone:].sum()
    # Of tokens that are each rarer than that, this many parts are all as often as it at least.
    parts = int(rest // (2 * LEAST_EXPECTED)) or int(rest >= LEAST_EXPECTED)
    cells = np.arange(len(expected))
    if parts:
        middle = ordered[alone:].cumsum() - ordered[alone:] / 2
        cells[alone:] = alone + np.minimum(middle * parts // rest, parts - 1).astype(int)
    else:
        cells[alone:] = max(alone - 1, 0)
    found = np.empty_like(cells)
    found[order] = cells
    return found


def _solve(falling: Callable[[float], float]) -> float:
    """Return where a function turns negative."""
    low, high = 0.0, 1e5
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def _counts(numbers: Tensor, bins: int) -> list[float]:
    places = (numbers * bins).long().clamp(0, bins - 1)
    return [float(n) for n in torch.bincount(places, minlength=bins)]
