"""Tests of draws against their laws, and the smallest fault that each test detects.

A draw from a discrete law is converted to a number that is uniform if and only if the draw follows
that law, so that draws in thousands of contexts form one sample from one distribution. All
randomness is seeded, so results are reproducible. Two further tests find faults of a sampler
itself: another temperature, and filters left on.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import xlogy
from scipy.stats import binom, chi2, ncx2, norm, pearson3
from torch import Tensor

from specbench.analysis.tables.table import percent
from specbench.validation.findings import Judgement, judged

FALSE_ALARM = 1e-6  # probability for a whole check, divided evenly among its tests
BINS, MIN_EXPECTED = 16, 10
POWER = 0.99
TOLERANCE = 1e-3  # of numbers
NO_POWER = "; a wrong law would hardly be noticed"
Floats = NDArray[np.float64]
TOP_K, TOP_P, MIN_P = "top-k", "top-p", "min-p"
# From strict to mild; a stricter filter than one of these is seen like that one.
FILTERS = (
    *((TOP_K, value) for value in (5, 20, 50, 100)),
    *((TOP_P, value) for value in (0.5, 0.8, 0.9, 0.95, 0.99)),
    *((MIN_P, value) for value in (0.2, 0.1, 0.05, 0.02)),
)
MANY = 50  # expected tokens from which their count is nearly normal


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
        for numbers, tokens in ((self._seen, seen), (self._control, drawn)):
            numbers.append(uniform(law, wrong, tokens, self._uniform(law)[:, 0]).cpu())

    def judge(self, alpha: float) -> Judgement:
        """Test all draws so far at a probability of a false alarm."""
        seen, control = self._numbers(self._seen), self._numbers(self._control)
        bins = min(BINS, len(seen) // MIN_EXPECTED)
        if bins < 2:
            return _of_draws(len(seen), 0.0, 0.0, 0, alpha)
        expected = len(seen) / bins
        observed = deviance(np.histogram(seen, bins, (0, 1))[0], expected)
        wrong = deviance(np.histogram(control, bins, (0, 1))[0], expected)
        return _of_draws(len(seen), observed, wrong, bins - 1, alpha)

    @staticmethod
    def _numbers(parts: list[Tensor]) -> Floats:
        return torch.cat([torch.empty(0), *parts]).clamp(0, 1).numpy()

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
        mean = np.bincount(cells, expected)
        self._draws += len(seen)
        self._freedom += freedom
        self._seen += deviance(np.bincount(cells, counted), mean)
        self._control += deviance(np.bincount(cells, drawn), mean)

    def judge(self, alpha: float) -> Judgement:
        """Test all draws so far at a probability of a false alarm."""
        return _of_draws(self._draws, self._seen, self._control, self._freedom, alpha)


class Numbers:
    """Compares numbers that must agree up to rounding."""

    def __init__(self, exceptions: float) -> None:
        """Create a comparison in which so large a share may be off, but at least one number."""
        self._exceptions = exceptions
        self._errors, self._control = [torch.zeros(0)], [torch.zeros(0)]

    def add(self, error: Tensor, control: Tensor) -> None:
        """Add errors and those of a negative control; both are NaN where there is no number."""
        for errors, part in ((self._errors, error), (self._control, control)):
            errors.append(part[~part.isnan()].cpu())

    def judge(self, alpha: float) -> Judgement:
        """Compare all numbers so far, which leave no doubt."""
        errors, control = torch.cat(self._errors), torch.cat(self._control)
        count = len(errors)
        allowed = max(1, int(self._exceptions * count)) if self._exceptions else 0
        off, control_off = int((errors > TOLERANCE).sum()), int((control > TOLERANCE).sum())
        weak, share = control_off <= allowed, None
        if not weak:
            share = float(brentq(lambda s: binom.sf(allowed, count, s) - POWER, 0, 1))
        largest = float(errors.max()) if count else 0.0
        sentence = f"{off:,} of {count:,} are wrong; largest error {largest:.2g}"
        sentence += NO_POWER if weak else f"; notices {percent(share, '.2f')} of wrong numbers"
        facts = {
            "draws": count,  # numbers, each of a draw or an output
            "off": off,  # by more than the tolerance
            "control": control_off,  # so many are off in the negative control
            "allowed": allowed,  # so many may be off
            "largest_error": largest,
            "share": share,  # smallest share of wrong numbers that is detected; None if none is
            "alpha": alpha,
        }
        return judged(off > allowed, weak, sentence, facts)


def uniform(law: Tensor, wrong: Tensor, seen: Tensor, uniforms: Tensor) -> Tensor:
    """Convert draws to numbers that are uniform in [0, 1] if the draws follow their laws.

    The number is the law's mass of all tokens ordered before the draw, plus a random part of the
    mass of the draw and its ties; a draw without mass gives 1. Tokens are ordered by wrong / law,
    the most powerful order for separating the two laws. Laws are ``[K, V]``, draws and uniforms
    ``[K]``.
    """
    ratio = torch.where(law > 0, wrong / law, torch.inf)
    drawn = ratio.gather(-1, seen[:, None])
    before = torch.where(ratio < drawn, law, 0).sum(-1)
    tied = torch.where(ratio == drawn, law, 0).sum(-1)
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
    rare = ordered[alone:].sum()
    # Every cell of rare tokens has an expected count of at least MIN_EXPECTED.
    parts = int(rare // (2 * MIN_EXPECTED)) or int(rare >= MIN_EXPECTED)
    cells = np.arange(len(expected))
    if parts:
        middle = ordered[alone:].cumsum() - ordered[alone:] / 2
        cells[alone:] = alone + np.minimum(middle * parts // rare, parts - 1).astype(int)
    else:
        cells[alone:] = max(alone - 1, 0)
    by_token = np.empty_like(cells)
    by_token[order] = cells
    return by_token


def _of_draws(draws: int, seen: float, control: float, freedom: int, alpha: float) -> Judgement:
    """Judge draws by their statistic, and their test by that of a wrong law's draws."""
    p_value, control_p, share = 1.0, 1.0, None
    if freedom:
        p_value, control_p = float(chi2.sf(seen, freedom)), float(chi2.sf(control, freedom))
        share = smallest_share(control, freedom, alpha)
    sentence = f"{draws:,} draws, p = {p_value:.2g}"
    sentence += NO_POWER if share is None else f"; notices {percent(share)} of wrong draws"
    facts = {
        "draws": draws,
        "p_value": p_value,  # of the draws, under the law
        "control": control_p,  # of equally many draws from a wrong law, which must be rejected
        "share": share,  # smallest share of wrong draws that is detected; None if none is
        "alpha": alpha,
    }
    return judged(p_value < alpha, control_p >= alpha, sentence, facts)


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
        deviation, variance = log_deviations(law)
        third = (law * deviation**3).sum(-1)
        score = deviation.gather(-1, tokens[:, None])[:, 0]
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
        filters = ", ".join(f"{kind} {value:g}" for kind, value in visible.items())
        sentence += f"; notices {filters}" if filters else ""
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


def log_deviations(law: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p less its mean under each law ``[..., V]``, and the variance of log p."""
    logs = law.clamp_min(torch.finfo(law.dtype).tiny).log()
    deviation = logs - (law * logs).sum(-1, keepdim=True)
    return deviation, (law * deviation**2).sum(-1)


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
