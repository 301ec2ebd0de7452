"""Points to compare: what settings reach on the prompts that all of them have, resampled jointly.

A point is a setting of a method on one task. All its figures come from sums per prompt, so one
bootstrap over the shared prompts gives every figure of every point, and any comparison is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.analysis.intervals import Floats, Statistic, bootstrap, cluster_sums, ratio
from specbench.analysis.scores import score_terms
from specbench.errors import UsageError

#: What quality is paid with, turned so that more is better. ``speedup`` is over autoregressive.
Gain = Literal["acceptance", "time", "speedup"]
GAINS: tuple[Gain, ...] = get_args(Gain)
#: What is summed per prompt beside the terms of quality.
_SUMMED = ("accepted", "proposed", "seconds", "output_tokens", "samples")


class Gains(NamedTuple):
    """A gain of points as a ratio of means over samples, which is what mixtures of points need.

    Attributes:
        numerator: [..., points].
        denominator: [..., points]; 0 where the gain is not defined.
    """

    numerator: Floats
    denominator: Floats

    @property
    def value(self) -> Floats:
        """[..., points] the gain, NaN where it is not defined."""
        return ratio(np.stack([self.numerator, self.denominator], axis=-1))

    def of(self, points: slice | Sequence[int]) -> Gains:
        """Return the gains of some of the points."""
        return Gains(self.numerator[..., points], self.denominator[..., points])


@dataclass(frozen=True)
class Reached:
    """What points reach: on the data itself in row 0, in the bootstrap's resamples in the others.

    Attributes:
        n: Prompts that all points have.
        quality: [1 + RESAMPLES, points], 0 to 1.
        accepted: [1 + RESAMPLES, points] accepted drafts of a sample, a mean as all that follow.
        proposed: [1 + RESAMPLES, points] drafted tokens of a sample.
        seconds: [1 + RESAMPLES, points] time of a sample, prefill and decoding.
        output_tokens: [1 + RESAMPLES, points] tokens of a sample.
    """

    n: int
    quality: Floats
    accepted: Floats
    proposed: Floats
    seconds: Floats
    output_tokens: Floats

    @property
    def acceptance(self) -> Floats:
        """[1 + RESAMPLES, points] accepted over proposed drafts, NaN where none were proposed."""
        return Gains(self.accepted, self.proposed).value

    @property
    def tokens_per_second(self) -> Floats:
        """[1 + RESAMPLES, points] output tokens over seconds."""
        return Gains(self.output_tokens, self.seconds).value

    def gains(self, gain: Gain, baseline: int = -1) -> Gains:
        """Return a gain of each point: acceptance, minus the seconds, or the speed-up.

        Args:
            gain: Which of them.
            baseline: The point over whose tokens per second the speed-up is.
        """
        if gain == "acceptance":
            return Gains(self.accepted, self.proposed)
        if gain == "time":
            return Gains(-self.seconds, np.ones_like(self.seconds))
        return Gains(self.output_tokens, self.seconds * self.tokens_per_second[:, [baseline]])


@dataclass(frozen=True)
class Points:
    """Sums of points over the prompts that all of them have.

    Attributes:
        sums: [prompts, points, terms] the terms of quality, then those of ``_SUMMED``.
        score: The quality of totals of the first.
    """

    sums: Floats
    score: Statistic

    def reached(self) -> Reached:
        """Return what the points reach."""
        return self._figures(bootstrap(self.sums))

    def reached_with_fastest(self, *groups: Sequence[int]) -> tuple[Reached, list[int]]:
        """Return what the points reach, and after them the fastest point of each group.

        The fastest of several is fast by luck too, and its time would flatter it: of four points
        of one speed an interval of 95 % covered it in 3 of 4 cases. So the fastest is chosen on
        one half of the prompts and measured on the other, the other way round too, and the two
        are pooled, anew in each resample. That is no faster than what a user gets who chooses on
        half as many prompts.

        Args:
            *groups: The points to choose from.

        Returns:
            What is reached, [1 + RESAMPLES, points + groups], and the fastest point of each group
            on all prompts.
        """
        half = np.arange(len(self.sums)) % 2
        apart = np.where(half[:, None] == [0, 1], 1.0, 0.0)[:, :, None, None]
        halves = bootstrap(apart * self.sums[:, None])  # [1 + RESAMPLES, 2, points, terms]
        totals = halves.sum(axis=1)
        chosen = [_chosen_crosswise(halves, np.asarray(group)) for group in groups]
        seconds = _seconds(totals[0])
        fastest = [min(group, key=seconds.__getitem__) for group in groups]
        return self._figures(np.concatenate([totals, *chosen], axis=1)), fastest

    def _figures(self, totals: Floats) -> Reached:
        terms = totals.shape[-1] - len(_SUMMED)
        means = totals[..., terms:-1] / totals[..., -1:]
        parts = dict(zip(_SUMMED[:-1], np.moveaxis(means, -1, 0), strict=True))
        return Reached(len(self.sums), self.score(totals[..., :terms]), **parts)


def shared_points(settings: Sequence[pd.DataFrame], one_law: Sequence[int] = ()) -> Points:
    """Sum the scored samples of each setting per prompt.

    Args:
        settings: Samples of each point, all of one task.
        one_law: Points that emit the same law, as plain SD does whatever its draft length: they
            all get the quality of all their samples, lest the luckiest of them pass for better.

    Raises:
        UsageError: No prompt has a quality in every setting.
    """
    metric = settings[0]["quality_metric"].iloc[0]
    summed = []
    for setting in settings:
        scored = setting[setting["quality"].notna()]
        terms, score = score_terms(scored, "quality", metric)
        others = scored.assign(
            accepted=scored["accepted"].fillna(0),  # autoregressive, which proposes nothing
            seconds=scored["prefill_seconds"] + scored["decode_seconds"],
            samples=1.0,
        )[list(_SUMMED)]
        prompts, sums = cluster_sums(np.hstack([terms, others]), scored["sample_id"])
        summed.append(pd.DataFrame(sums, index=prompts))
    shared: Floats = pd.concat(summed, axis=1, join="inner").to_numpy(copy=True)
    if not len(shared):
        task = settings[0]["task"].iloc[0]
        raise UsageError(f"On {task} no prompt has a quality in every setting compared.")
    sums = shared.reshape(len(shared), len(settings), -1)
    if one_law:
        terms = sums[:, list(one_law), : -len(_SUMMED)]
        sums[:, list(one_law), : -len(_SUMMED)] = terms.sum(axis=1, keepdims=True)
    return Points(sums, score)


def _seconds(totals: Floats) -> Floats:
    """Mean time of a sample, [...] of totals [..., terms]."""
    return ratio(totals[..., [_SUMMED.index("seconds") - len(_SUMMED), -1]])


def _chosen_crosswise(halves: Floats, group: NDArray[np.intp]) -> Floats:
    """[rows, 1, terms] the group's fastest by either half as the other half measured it.

    Args:
        halves: [rows, 2, points, terms] totals of each half of the prompts.
        group: Points to choose from.
    """
    seconds = _seconds(halves[:, :, group])
    # A half without prompts has no fastest point; any will do, since a choice by chance is fair.
    best = group[np.argmin(np.where(np.isnan(seconds), np.inf, seconds), axis=-1)]
    rows = np.arange(len(halves))
    measured: Floats = halves[rows, 0, best[:, 1]] + halves[rows, 1, best[:, 0]]
    return measured[:, None]
