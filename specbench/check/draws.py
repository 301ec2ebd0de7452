"""Tests of draws against their laws, and the smallest fault that each test detects.

A draw from a discrete law is converted to a number that is uniform if and only if the draw follows
that law, so that draws in thousands of contexts form one sample from one distribution. All
randomness is seeded, so results are reproducible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import xlogy
from scipy.stats import chi2, ncx2
from torch import Tensor

FALSE_ALARM = 1e-6  # probability for a whole check, divided evenly among its tests
BINS, MIN_EXPECTED = 16, 10
POWER = 0.99
Floats = NDArray[np.float64]


class Outcome(NamedTuple):
    """The result of a test."""

    draws: int
    p_value: float  # of the draws, under the law
    control: float  # of equally many draws from a wrong law, which must be rejected
    share: float | None  # smallest share of wrong draws that is detected; None if none is


class Stream:
    """Tests draws in many contexts, each with its law and a wrong law."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._seen: list[Tensor] = []
        self._control: list[Tensor] = []

    def add(self, law: Tensor, wrong: Tensor, seen: Tensor) -> None:
        """Add draws ``[K]`` from laws ``[K, V]`` in float64, with the wrong laws ``[K, V]``."""
        mass = self._uniform(wrong) * wrong.sum(-1, keepdim=True)
        drawn = torch.searchsorted(wrong.cumsum(-1), mass, right=True)[:, 0]
        drawn = drawn.clamp_max(wrong.shape[-1] - 1)
        for found, tokens in ((self._seen, seen), (self._control, drawn)):
            found.append(uniform(law, wrong, tokens, self._uniform(law)[:, 0]).cpu())

    def outcome(self, alpha: float) -> Outcome:
        """Test all draws so far at a probability of a false alarm."""
        parts = (torch.cat(part or [torch.empty(0)]) for part in (self._seen, self._control))
        seen, control = (part.clamp(0, 1).numpy() for part in parts)
        bins = min(BINS, len(seen) // MIN_EXPECTED)
        if bins < 2:
            return Outcome(len(seen), 1.0, 1.0, None)
        counts = (np.histogram(part, bins, (0, 1))[0] for part in (seen, control))
        observed, wrong = (deviance(count, len(seen) / bins) for count in counts)
        return _outcome(len(seen), observed, wrong, bins - 1, alpha)

    def _uniform(self, like: Tensor) -> Tensor:
        return torch.from_numpy(self._random.random((len(like), 1))).to(like.device)


class Counts:
    """Tests draws of a token in few contexts by counts of common tokens and groups of rare ones."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._draws, self._freedom, self._seen, self._control = 0, 0, 0.0, 0.0

    def add(self, law: Tensor, wrong: Tensor, seen: Tensor) -> None:
        """Add draws ``[K]`` that all have one law ``[V]``, with a wrong law ``[V]``."""
        probabilities, wrong_ones = law.cpu().numpy(), wrong.cpu().numpy()
        expected = probabilities * len(seen)
        cells = cells_of(expected)
        if (freedom := int(cells.max())) < 1:
            return
        drawn = self._random.multinomial(len(seen), wrong_ones / wrong_ones.sum())
        counted = np.bincount(seen.cpu().numpy(), minlength=len(expected))
        found, control, mean = (np.bincount(cells, n) for n in (counted, drawn, expected))
        self._draws += len(seen)
        self._freedom += freedom
        self._seen += deviance(found, mean)
        self._control += deviance(control, mean)

    def outcome(self, alpha: float) -> Outcome:
        """Test all draws so far at a probability of a false alarm."""
        return _outcome(self._draws, self._seen, self._control, self._freedom, alpha)


def uniform(law: Tensor, wrong: Tensor, seen: Tensor, uniforms: Tensor) -> Tensor:
    """Convert draws to numbers that are uniform in [0, 1] if the draws follow their laws.

    The number is the law's mass of all tokens ordered before the draw, plus a random part of the
    mass of the draw and its ties; a draw without mass gives 1. Tokens are ordered by wrong / law,
    the most powerful order for separating the two laws. Laws are ``[K, V]``, draws and uniforms
    ``[K]``.
    """
    ratio = torch.where(law > 0, wrong / law, torch.inf)
    own = ratio.gather(-1, seen[:, None])
    before, tied = ((law * part).sum(-1) for part in (ratio < own, ratio == own))
    return before + uniforms * tied


def deviance(seen: ArrayLike, expected: ArrayLike) -> float:
    """Return the likelihood-ratio chi-square G, whose far tail is more accurate than Pearson's."""
    return float(2 * xlogy(seen, np.asarray(seen) / expected).sum())


def smallest_share(control: float, freedom: int, alpha: float) -> float | None:
    """Return the smallest share of wrong draws that is detected with probability ``POWER``.

    ``control`` is the statistic if all draws are wrong; it grows with the square of their share.
    """
    if control <= freedom:
        return None
    critical = chi2.isf(alpha, freedom)
    needed = brentq(lambda c: ncx2.sf(critical, freedom, c) - POWER, 0, 4 * critical + 100)
    share = float(np.sqrt(needed / (control - freedom)))
    return share if share <= 1 else None


def cells_of(expected: Floats) -> NDArray[np.int64]:
    """Return the cell of every token; rare tokens share cells with a sufficient expected count."""
    order = np.argsort(-expected)
    ordered = expected[order]
    alone = int((ordered >= MIN_EXPECTED).sum())
    rest = ordered[alone:].sum()
    # Every cell of rare tokens has an expected count of at least MIN_EXPECTED.
    parts = int(rest // (2 * MIN_EXPECTED)) or int(rest >= MIN_EXPECTED)
    cells = np.arange(len(expected))
    if parts:
        middle = ordered[alone:].cumsum() - ordered[alone:] / 2
        cells[alone:] = alone + np.minimum(middle * parts // rest, parts - 1).astype(int)
    else:
        cells[alone:] = max(alone - 1, 0)
    found = np.empty_like(cells)
    found[order] = cells
    return found


def _outcome(draws: int, seen: float, control: float, freedom: int, alpha: float) -> Outcome:
    if not freedom:
        return Outcome(draws, 1.0, 1.0, None)
    p_value, control_p = (float(chi2.sf(statistic, freedom)) for statistic in (seen, control))
    return Outcome(draws, p_value, control_p, smallest_share(control, freedom, alpha))
