"""The time of a round from the times of its parts, for any number of drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specbench.analysis.intervals import Floats
from specbench.theory.formulas import rounds_of_text


@dataclass(frozen=True)
class StepTimes:
    """What the parts of a round take, in seconds; each is [...] or one number.

    Attributes:
        draft: A draft step; a round has N of them.
        fixed: All else of a round, without what grows with N: the target's pass over one token,
            judging, drawing and whatever lies between.
        further: What each further token adds to that.
    """

    draft: Floats
    fixed: Floats
    further: Floats

    def round_seconds(self, n: int) -> Floats:
        """Return the seconds of a round of N drafts."""
        return self.fixed + n * (self.draft + self.further)


def fit_steps(
    lengths: NDArray[np.int64],
    rounds: Floats,
    draft: Floats,
    others: Floats,
    autoregressive: Floats,
) -> StepTimes:
    """Fit the times of a method's rounds.

    Where several draft lengths were measured, all but drafting is a line in N through them by least
    squares. One alone does not say what a token more costs: there, the line begins at the
    target's pass over a single token, in autoregressive decoding, plus what this method's rounds
    need beside the target's pass.

    Args:
        lengths: [k] draft lengths N that were measured.
        rounds: [..., k] rounds of each.
        draft: [..., k] seconds of drafting, over all rounds.
        others: [..., k, (verify, rest)] seconds of the target's passes and of all else, likewise.
        autoregressive: [...] seconds of the target's pass over one token.
    """
    verify, rest = others[..., 0] / rounds, others[..., 1] / rounds
    step = draft.sum(axis=-1) / (rounds * lengths).sum(axis=-1)
    if len(lengths) > 1:
        fixed, further = _line(lengths, verify + rest, rounds)
    else:
        further = np.maximum((verify[..., 0] - autoregressive) / lengths[0], 0)
        fixed = verify[..., 0] + rest[..., 0] - lengths[0] * further
    return StepTimes(step, fixed, further)


def seconds_of_text(
    acceptance: Floats, tokens: Floats, prefill: Floats, steps: StepTimes
) -> Floats:
    """Return the expected seconds of a text at every draft length up to N.

    Args:
        acceptance: [..., N] as for ``formulas.accepted_length``.
        tokens: [...] the text's tokens.
        prefill: [...] seconds of reading its prompt.
        steps: Times of the parts, [...] each.

    Returns:
        [..., N] for 1 to N drafts a round.
    """
    lengths = range(1, acceptance.shape[-1] + 1)
    return np.stack(
        [
            prefill + rounds_of_text(acceptance[..., :n], tokens) * steps.round_seconds(n)
            for n in lengths
        ],
        axis=-1,
    )


def best_draft_length(seconds: Floats) -> Floats:
    """Return the draft length that takes the least time.

    Args:
        seconds: [..., N] as from ``seconds_of_text``.

    Returns:
        [...] from 1 to N; NaN where no time is known.
    """
    known = ~np.isnan(seconds).all(axis=-1)
    best = np.argmin(np.where(np.isnan(seconds), np.inf, seconds), axis=-1) + 1.0
    return np.where(known, best, np.nan)


def _line(x: NDArray[np.int64], y: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Intercept and slope, never below 0, of weighted least squares over the last axis."""
    share = weights / weights.sum(axis=-1, keepdims=True)
    x_mean, y_mean = (share * x).sum(axis=-1), (share * y).sum(axis=-1)
    x_off, y_off = x - x_mean[..., None], y - y_mean[..., None]
    slope = (share * x_off * y_off).sum(axis=-1) / (share * x_off**2).sum(axis=-1)
    slope = np.maximum(slope, 0)
    return y_mean - slope * x_mean, slope
