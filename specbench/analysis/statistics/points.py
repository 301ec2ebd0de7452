"""Points to compare: settings of methods, evaluated on their shared prompts and resampled jointly.

A point is a setting of a method on one task. All its figures are computed from sums per prompt, so
one bootstrap over the shared prompts gives all figures of all points, and comparisons are paired.

Texts that are decoded together share their time, so times are measured in blocks of B prompts,
which all cells decode one after another in random order. A block counts for a cell if all of its B
prompts were decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.analysis.statistics import estimates, intervals
from specbench.analysis.statistics.blocks import by_time_unit, count_blocks, whole_blocks
from specbench.analysis.statistics.intervals import Floats, Interval, Statistic, ratio
from specbench.analysis.statistics.proportions import with_rare_differences
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE, METHODS, PARAMETER_COLUMNS, from_columns
from specbench.plugins import short_name
from specbench.runs.frames import example_ids
from specbench.runs.labels import method_label

#: What quality is traded for; more is better. ``speedup`` is relative to autoregressive.
Gain = Literal["acceptance", "time", "speedup"]
GAINS: tuple[Gain, ...] = get_args(Gain)
#: Methods that are pooled as the target, see ``with_pooled_target``.
TARGET = (AUTOREGRESSIVE, "sd")
#: Summed per prompt, besides the terms of quality.
SUMMED = ("accepted", "proposed", "seconds", "output_tokens", "samples")


@dataclass(frozen=True)
class Setting:
    """A method with its parameters and a draft length, on one task."""

    samples: pd.DataFrame  # ``sample_id`` names the units of intervals: prompts, or blocks of them
    prompts_per_unit: int = 1
    pooled: tuple[Setting, ...] = ()  # of the same distribution, whose quality counts with its own

    @cached_property
    def cell(self) -> Mapping[Any, Any]:
        """Columns that all samples share, from the first sample."""
        first: Mapping[Any, Any] = self.samples.iloc[0].to_dict()
        return first

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.cell["method"])

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes it from other settings of its task."""
        names = ("method", *PARAMETER_COLUMNS, "draft_length", "drafter", "session")
        values = [self.cell[name] for name in names]
        return tuple(None if pd.isna(value) else value for value in values)

    @property
    def session(self) -> int:
        """The session of the run in which it was measured."""
        return int(self.cell["session"])

    @property
    def draft_length(self) -> int:
        """Tokens drafted per round; 0 for autoregressive."""
        return int(self.cell["draft_length"])

    @property
    def drafter(self) -> str | None:
        """What proposes the drafts; None for autoregressive."""
        return str(self.cell["drafter"]) if self.draft_length else None

    @cached_property
    def emits_target(self) -> bool:
        """Whether it emits the target's distribution exactly."""
        method = METHODS.get(self.method)
        return method is not None and method.emits_target(from_columns(self.cell))

    @cached_property
    def has_quality(self) -> bool:
        """Whether any of its samples has a quality."""
        return bool(self.samples["quality"].notna().any())

    @cached_property
    def prompts(self) -> set[str]:
        """The prompts with a quality, or all if none has one."""
        samples = self.samples
        if self.has_quality:
            samples = samples[samples["quality"].notna()]
        return set(samples["sample_id"])

    @cached_property
    def timed(self) -> Setting:
        """The setting in units of which the time was measured: whole blocks, if it has any."""
        if not count_blocks(self.samples) > 0:
            return self
        blocks = whole_blocks(self.samples)
        pooled = tuple(setting.timed for setting in self.pooled)
        size = example_ids(self.samples)[blocks.notna()].nunique() // blocks.nunique()
        return Setting(by_time_unit(self.samples), size, pooled)

    @property
    def point(self) -> str:
        """Its name as a point of a front, such as ``w=0.9`` or ``sd``."""
        label = method_label({**self.cell, "drafter": None})
        return label.removeprefix(f"{short_name(self.method)} ")

    @cached_property
    def sums(self) -> tuple[NDArray[Any], Floats, Statistic]:
        """Prompts [n], their sums [n, terms], and quality as a statistic.

        The prompts are those with a quality, or all if none has one; quality is then NaN.
        """
        scored, metric = self.samples, None
        if self.has_quality:
            scored, metric = scored[scored["quality"].notna()], self.cell["quality_metric"]
        terms, score = estimates.score_terms(scored, "quality", metric)
        columns = np.column_stack([terms, *(estimates.term(scored, name) for name in SUMMED)])
        prompts, sums = intervals.cluster_sums(columns, scored["sample_id"])
        for pooled_prompts, pooled_sums, _ in (setting.sums for setting in self.pooled):
            _, rows, pooled = np.intersect1d(prompts, pooled_prompts, return_indices=True)
            sums[rows, : -len(SUMMED)] += pooled_sums[pooled, : -len(SUMMED)]
        return prompts, sums, score

    @property
    def quality(self) -> float:
        """The quality of all its samples together."""
        _, sums, score = self.sums
        return float(score(sums[:, : -len(SUMMED)].sum(axis=0)))


def settings_of(samples: pd.DataFrame) -> list[Setting]:
    """Split the samples of one task into settings, in the order of the run."""
    parameters = [name for name in PARAMETER_COLUMNS if samples[name].notna().any()]
    keys = ["method", *parameters, "draft_length", "drafter"]
    groups = samples.groupby(keys, sort=False, dropna=False)
    return [Setting(rows) for _, rows in groups]


def with_pooled_target(points: Sequence[Setting], settings: Sequence[Setting]) -> list[Setting]:
    """Return points of which those that emit the target's distribution share their quality.

    It is pooled over themselves and the settings of ``sd`` and ``autoregressive``, at any draft
    length, so that the target is estimated from all texts of its distribution, and no draft length
    looks better by chance. Otherwise the points are returned as they are. A point that was measured
    again, in another session, has the same texts.
    """
    target = [s for s in settings if s.method in TARGET and s.emits_target and s.has_quality]
    target += [p for p in points if p.emits_target and p.has_quality and p.method not in TARGET]
    return [
        replace(p, pooled=tuple(s for s in target if s.key[:-1] != p.key[:-1]))
        if p.emits_target and p.has_quality
        else p
        for p in points
    ]


class Gains(NamedTuple):
    """Gains of points [..., points] as a numerator and a denominator, which mix linearly."""

    numerator: Floats
    denominator: Floats  # 0 where the gain is undefined

    @property
    def value(self) -> Floats:
        """The gain [..., points], NaN where undefined."""
        return ratio(np.stack([self.numerator, self.denominator], axis=-1))

    def of(self, points: slice) -> Gains:
        """Return the gains of some of the points."""
        return Gains(self.numerator[..., points], self.denominator[..., points])


@dataclass(frozen=True)
class PointEstimates:
    """Figures of points [1 + RESAMPLES, points]: row 0 for the data, the others for resamples."""

    n: int  # shared units, which are prompts or blocks of prompts
    prompts_per_unit: int
    quality: Floats  # 0 to 1
    means: Mapping[str, Floats]  # per sample, of ``SUMMED``

    @property
    def acceptance(self) -> Floats:
        """Accepted / proposed drafts; NaN without drafts."""
        return self.values(estimates.ACCEPTANCE_LESS)

    @property
    def seconds(self) -> Floats:
        """Seconds per sample."""
        return self.means[estimates.SECONDS]

    def values(self, metric: str) -> Floats:
        """Return what a contrast compares, quality or a rate, of each point."""
        if metric == estimates.QUALITY_LESS:
            return self.quality
        above, below, _ = estimates.RATES[metric]
        return Gains(self.means[above], self.means[below]).value

    def contrast(self, metric: str, points: Sequence[int], base: int) -> Interval:
        """Return a contrast of a point with another, or its mean over the points of heads."""
        values = self.values(metric)
        of_points, base_values = values[:, points], values[:, [base]]
        if metric in estimates.RATES and estimates.RATES[metric].as_ratio:
            return intervals.mean_over_seeds(of_points / base_values, self.n, log=True)
        return intervals.mean_over_seeds(of_points - base_values, self.n)

    def gains(self, gain: Gain) -> Gains:
        """Return the gain of each point; the last point is the baseline of speed-ups."""
        means = self.means
        if gain == "acceptance":
            return Gains(means["accepted"], means["proposed"])
        if gain == "time":
            return Gains(-self.seconds, means[estimates.SAMPLES])
        speed = self.values(estimates.SPEED)[:, [-1]]
        return Gains(means[estimates.TOKENS], self.seconds * speed)


class Fastest(NamedTuple):
    """The fastest point of a group, see ``Points.estimates_with_fastest``."""

    point: int  # on all prompts
    pooled: int  # what is chosen on one half of the prompts and measured on the other


@dataclass(frozen=True)
class Points:
    """Sums of points over their shared units, which are prompts or blocks of prompts."""

    sums: Floats  # [units, points, terms]: terms of quality, then those of ``SUMMED``
    score: Statistic  # maps totals of the terms of quality to quality
    prompts_per_unit: int  # 1, or the size of a block

    def estimates(self) -> PointEstimates:
        """Return the figures of the points."""
        return self._figures(intervals.bootstrap(self.sums))

    def unit_values(self, gain: Gain) -> tuple[Floats, Gains]:
        """Return quality and gain of each unit, [units, points]; see ``intervals.unit_values``."""
        of_units = self._figures(self.sums, intervals.unit_values)
        return of_units.quality, of_units.gains(gain)

    def quality_less(self, reached: PointEstimates, heads: Sequence[int], base: int) -> Interval:
        """Return the mean quality of heads minus a point's.

        It is that of ``reached`` (``PointEstimates.contrast``), wider where few prompts differ.
        """
        quality = self._figures(self.sums, intervals.unit_values).quality
        figure = reached.contrast(estimates.QUALITY_LESS, heads, base)
        return with_rare_differences(figure, quality[:, heads].mean(axis=1) - quality[:, base])

    def estimates_with_fastest(
        self, *groups: Sequence[int]
    ) -> tuple[PointEstimates, list[Fastest]]:
        """Return the figures of the points, then of the fastest point of each group.

        Reporting the time of the fastest of several points is biased by selection: with four
        equally fast points, the 95 % interval covered the truth in 3 of 4 cases. The fastest point
        is therefore chosen on one half of the prompts and measured on the other, and vice versa.
        Both results are pooled, and every resample repeats the choice. The result is what a user
        gets by choosing on half as many prompts.

        Returns:
            Figures [1 + RESAMPLES, points + groups], and the fastest point of each group.
        """
        half = np.arange(len(self.sums)) % 2
        apart = np.where(half[:, None] == [0, 1], 1.0, 0.0)[:, :, None, None]
        halves = intervals.bootstrap(apart * self.sums[:, None])  # [rows, 2, points, terms]
        totals = halves.sum(axis=1)  # [1 + RESAMPLES, points, terms]
        rows, chosen = np.arange(len(halves)), []
        for group in map(np.asarray, groups):
            of_halves = _seconds(halves[:, :, group])
            # A half without prompts has no fastest point; an arbitrary choice is unbiased.
            of_halves = np.where(np.isnan(of_halves), np.inf, of_halves)
            best = group[np.argmin(of_halves, axis=-1)]  # [rows, 2]
            measured = halves[rows, 0, best[:, 1]] + halves[rows, 1, best[:, 0]]
            chosen.append(measured[:, None])  # [rows, 1, terms]
        seconds = _seconds(totals[0])
        fastest = [
            Fastest(min(group, key=seconds.__getitem__), self.sums.shape[1] + number)
            for number, group in enumerate(groups)
        ]
        return self._figures(np.concatenate([totals, *chosen], axis=1)), fastest

    def _figures(
        self,
        sums: Floats,
        apply: Callable[[Floats, Statistic], Floats] = lambda sums, statistic: statistic(sums),
    ) -> PointEstimates:
        terms = sums.shape[-1] - len(SUMMED)
        quality = apply(sums[..., :terms], self.score)
        # The means per sample: ``SUMMED`` ends in the number of samples.
        means = np.moveaxis(apply(sums[..., terms:], lambda sums: sums / sums[..., -1:]), -1, 0)
        by_name = dict(zip(SUMMED, means, strict=True))
        return PointEstimates(len(self.sums), self.prompts_per_unit, quality, by_name)


def shared_points(settings: Sequence[Setting]) -> Points:
    """Sum the scored samples of each setting of one task per prompt.

    Raises:
        UsageError: No prompt has a quality in every setting, although some setting has one.
    """
    parts = [setting.sums for setting in settings]
    scored = {setting.has_quality for setting in settings}
    prompts = reduce(np.intersect1d, (labels for labels, _, _ in parts))
    if not len(prompts) or len(scored) > 1:
        task = settings[0].cell["task"]
        raise UsageError(f"On {task} no prompt has a quality in every setting compared.")
    sums = np.stack([sums[np.searchsorted(labels, prompts)] for labels, sums, _ in parts], axis=1)
    return Points(sums, parts[0][-1], settings[0].prompts_per_unit)


def scored_alike(settings: Sequence[Setting]) -> list[Setting]:
    """Return settings of which all have a quality or none has."""
    if all(setting.has_quality for setting in settings):
        return [*settings]
    return [replace(s, samples=s.samples.assign(quality=np.nan), pooled=()) for s in settings]


def timed_points(settings: Sequence[Setting]) -> Points:
    """Return points of settings in the units of their times, see ``shared_points``."""
    return shared_points([setting.timed for setting in scored_alike(settings)])


def _seconds(totals: Floats) -> Floats:
    """Return the mean time per sample [...] from totals [..., terms]."""
    return ratio(totals[..., [SUMMED.index("seconds") - len(SUMMED), -1]])
