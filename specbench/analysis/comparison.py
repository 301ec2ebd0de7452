"""The rows of a comparison: methods beside no speculation, plain SD, fronts and a coin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import pandas as pd

from specbench.analysis.intervals import Interval, estimate, ratio
from specbench.analysis.pareto import (
    STATIC_FAMILY,
    front_of,
    front_quality,
    gap_between,
    gaps_from_coin,
    points_with_front,
)
from specbench.analysis.points import (
    Fastest,
    Gain,
    Gains,
    PointEstimates,
    Setting,
    scored_alike,
    shared_points,
    timed_points,
)
from specbench.analysis.scores import AT_LIMIT, COMPLETED, QUALITY, REPETITION, text_differences
from specbench.analysis.sessions import MethodSettings, TaskRun, alone_of, methods_of, sd_of
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS
from specbench.runs.shown import PHASES

#: The quantity held equal.
At = Literal["acceptance", "time", "quality"]
ATS: tuple[At, ...] = get_args(At)
#: Used instead of ``quality`` for comparisons with plain SD, in which quality is not held equal.
OWN = "own quality"

FRONT, SD, SD_CHOSEN = "static front (randomised)", "sd", "sd at chosen N"
CONTROL = "sharpened front (randomised)"
#: A random choice between ``sd`` and the draft for each prompt, and no speculation.
COIN, ALONE = "coin between sd and the draft", AUTOREGRESSIVE
FRONTS = {FRONT: STATIC_FAMILY, CONTROL: (*STATIC_FAMILY, *CONTROLS)}
#: Quality minus the front's at the same gain, and at the front's nearest point of lower gain.
ABOVE, ABOVE_MEASURED = "quality_above", "quality_above_measured"
#: Ratios: baseline seconds per sample / own; own tokens/s / baseline tokens/s.
TIMES, TOKENS = "times_as_fast", "times_tokens_per_second"
#: Differences: own minus sd. Ratio: own output tokens per sample / sd's.
QUALITY_LESS, ACCEPTANCE_LESS = "quality_difference", "acceptance_difference"
LENGTH, SHARE = "length_ratio", "share_of_gain"
COMPLETED_LESS = "completed_quality_difference"
AT_LIMIT_LESS, REPETITION_LESS = "length_limit_difference", "repetition_difference"
#: Differences: own minus sd, of these figures of a summary.
TEXTS_LESS = {
    QUALITY_LESS: QUALITY,
    COMPLETED_LESS: COMPLETED,
    AT_LIMIT_LESS: AT_LIMIT,
    REPETITION_LESS: REPETITION,
}

#: The columns that the settings of a task of a run share.
TASK_RUN = ["run_id", "pair", "temperature", "engine", "batch_size", "task", "quality_metric"]
#: One row per figure: ``value`` with its interval over ``n`` prompts.
#:
#: ``points`` counts the settings that a row chose from or combined. ``draft_length`` is the
#: method's, or the chosen one; blank if the row combines several. ``quality``, ``acceptance``,
#: ``seconds`` (per sample) and ``PHASES`` belong to the method. ``reference`` is the baseline's
#: value: a quality, or seconds per sample at ``against_quality``, which for the front is the
#: method's quality, capped at the front's best. ``between`` names the front's points of next lower
#: and next higher gain; ``step`` is the difference of their qualities, and ``coarse`` whether it is
#: large (``pareto.COARSE``). ``noise`` is a factor: speed-ups from 1 / noise to noise can be noise
#: of the times; blank if ``sd`` was not timed twice. ``seeds`` counts the heads of one recipe of
#: which the row is a mean, 1 for each of them alone; it is blank for all other methods. ``missing``
#: counts prompts that other settings of the run have and the method lacks. ``blocks`` counts the
#: blocks of a run in batches, see ``analysis.points``.
COMPARISON = (
    *(*TASK_RUN, "blocks", "at", "method", "label", "points", "seeds", "missing", "draft_length"),
    *("drafter", "quality", "acceptance", "seconds", *PHASES),
    *("against", "against_draft_length", "against_quality", "reference", "between", "step"),
    *("coarse", "metric", "value", "ci_low", "ci_high", "n", "noise"),
)

Row = dict[str, Any]


def figure_columns(metric: str, figure: Interval, prompts_per_unit: int = 1) -> Row:
    """Return the columns of a figure, whose interval is over units of so many prompts."""
    value, low, high, units = figure
    n = units * prompts_per_unit
    return {"metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": n}


def require_times(run: TaskRun, method: MethodSettings) -> Iterator[Row]:
    """Yield nothing; raise if ``sd`` was not timed in a method's session."""
    if sd_of(run.settings) and not sd_of(run.timed(method.session)):
        raise UsageError(
            f"{method.label} and sd were timed in different sessions, so they have no speed-up: "
            "measure them in a new run"
        )
    yield from ()


def versus_none(run: TaskRun, method: MethodSettings, lengths: list[int]) -> Iterator[Row]:
    """Compare the speed of a method with no speculation, in the method's session."""
    alone = alone_of(run.timed(method.session))
    if not alone:
        return
    settings = method.at(lengths)
    points = timed_points([*settings, *alone])
    reached, (fastest,) = points.estimates_with_fastest(range(len(settings)))
    of_method, baseline = method.points(fastest), len(settings)
    for metric, figure in _speed_ratios(reached, of_method, baseline).items():
        yield {
            **method.facts(lengths, settings[fastest.point].draft_length, reached, of_method),
            "against": ALONE,
            "reference": reached.seconds[0, baseline],
            **figure_columns(metric, figure, reached.prompts_per_unit),
            "noise": run.noise.get(method.session, math.nan),
        }


@dataclass(frozen=True)
class _BesideSd:
    """A method, at one draft length or at its fastest of several, and plain SD on shared prompts.

    Attributes:
        settings: Those of the method.
        strict: Those of ``sd``.
        is_timed: Whether ``sd`` was timed in the method's session.
        reached: Figures of all points.
        clock: The same in the units of their times.
        points: The points of the method.
        fastest: The draft length of ``sd`` that is chosen.
        lengths: The draft length of each point of ``sd``.
        facts: The columns that describe the method.
        noise: Of times, see ``COMPARISON``.
    """

    settings: list[Setting]
    strict: list[Setting]
    is_timed: bool
    reached: PointEstimates
    clock: PointEstimates
    points: list[int]
    fastest: Fastest
    lengths: dict[int, int]
    facts: Row
    noise: float

    @classmethod
    def of(cls, run: TaskRun, method: MethodSettings, lengths: list[int]) -> Self:
        """Put a method beside ``sd``, without times if ``sd`` has none of the method's session."""
        timed = sd_of(run.timed(method.session))
        strict = timed or sd_of(run.settings)
        if not strict:
            raise UsageError(f"{method.first.cell['task']} was not run with sd; run it too.")
        settings = method.at(lengths)
        every = [*settings, *strict]
        groups = range(len(settings)), range(len(settings), len(every))
        points = shared_points(scored_alike(every), groups[1])
        reached, (fastest, fastest_sd) = points.estimates_with_fastest(*groups)
        clock = reached
        if run.blocks > 0 and timed:  # times are measured in other units than quality
            points = timed_points(every, groups[1])
            clock, (fastest, fastest_sd) = points.estimates_with_fastest(*groups)
        of_method = method.points(fastest)
        facts = method.facts(lengths, settings[fastest.point].draft_length, reached, of_method)
        facts["seconds"] = clock.seconds[0, of_method].mean()
        return cls(
            settings=settings,
            strict=strict,
            is_timed=bool(timed),
            reached=reached,
            clock=clock,
            points=of_method,
            fastest=fastest_sd,
            lengths={point: every[point].draft_length for point in groups[1]},
            facts=facts,
            noise=run.noise.get(method.session, math.nan),
        )

    def at(self, lengths: list[int]) -> int | None:
        """Return the point of ``sd`` at the method's only draft length, or None."""
        return next((point for point, n in self.lengths.items() if [n] == lengths), None)

    def row(self, against: str, point: int, length: int, metric: str, figure: Interval) -> Row:
        """Return the row of a figure relative to a point of ``sd``."""
        of_times = metric in (TIMES, TOKENS, SHARE)
        return self.facts | {
            "against": against,
            "against_draft_length": length,
            "against_quality": self.reached.quality[0, point],
            "reference": self.clock.seconds[0, point] if self.is_timed else math.nan,
            **figure_columns(metric, figure, self.clock.prompts_per_unit if of_times else 1),
            "noise": self.noise if metric in (TIMES, TOKENS) else math.nan,
        }

    def differences(self, same: int, names: Sequence[str]) -> dict[str, Interval]:
        """Return the figures relative to ``sd`` at the same draft length."""
        points, reached = self.points, self.reached
        return {
            **self._text_differences(same, names),
            ACCEPTANCE_LESS: reached.difference("acceptance", points, same),
            **(_speed_ratios(self.clock, points, same) if self.is_timed else {}),
            LENGTH: reached.ratio("output_tokens", points, same),
        }

    def _text_differences(self, same: int, names: Sequence[str]) -> dict[str, Interval]:
        """Return text statistics minus those of ``sd``; for several heads, quality only."""
        if len(self.settings) > 1:
            less = self.reached.difference("quality", self.points, same)
            return {} if np.isnan(less.value) else {QUALITY_LESS: less}
        every_sd = pd.concat([setting.samples for setting in self.strict])
        texts = text_differences(self.settings[0].samples, every_sd, names)
        return {name: texts[of] for name, of in TEXTS_LESS.items() if of in texts}

    def share_of_gain(self, same: int) -> Interval | None:
        """Return the share of the time saved that ``sd`` saves by N alone; None without a gain."""
        seconds, n = self.clock.seconds, self.clock.n
        gain = seconds[:, same] - seconds[:, self.points[0]]
        saved = seconds[:, same] - seconds[:, self.fastest.pooled]
        if not estimate(gain, n).low > 0:
            return None
        return estimate(ratio(np.stack([saved, gain], axis=-1)), n)


def versus_sd(
    run: TaskRun, method: MethodSettings, lengths: list[int], names: Sequence[str]
) -> Iterator[Row]:
    """Compare a method, at one draft length or at its fastest of several, with plain SD.

    Without times of ``sd`` from the method's session, compare quality and acceptance only. The
    figures ``names`` of texts are compared for a single head only.
    """
    beside = _BesideSd.of(run, method, lengths)
    same, fastest = beside.at(lengths), beside.fastest
    if same is not None:
        for metric, figure in beside.differences(same, names).items():
            if figure.n:  # else unknown
                yield beside.row(SD, same, lengths[0], metric, figure)
    if len(method.heads) > 1:
        return
    chosen, length = fastest.pooled, beside.lengths[fastest.point]
    if beside.is_timed and len(beside.strict) > 1:
        for metric, figure in _speed_ratios(beside.clock, beside.points, chosen).items():
            yield beside.row(SD_CHOSEN, chosen, length, metric, figure)
    if not beside.is_timed or same is None or length == lengths[0]:
        return
    if (share := beside.share_of_gain(same)) is not None:
        yield beside.row(SD_CHOSEN, chosen, length, SHARE, share)


def _speed_ratios(clock: PointEstimates, points: list[int], baseline: int) -> dict[str, Interval]:
    """Return both ratios of speed of a method's points to a baseline."""
    return {
        TIMES: clock.ratio("samples_per_second", points, baseline),
        TOKENS: clock.ratio("tokens_per_second", points, baseline),
    }


def versus_coin(run: TaskRun) -> Iterator[Row]:
    """Place each static weight above or below a coin between ``sd`` and the draft."""
    weights = methods_of(run.settings, ["static"])
    for length in dict.fromkeys(length for weight in weights for length in weight.lengths):
        points = [point for point in front_of(run.settings) if point.draft_length == length]
        gaps = gaps_from_coin(points)
        for weight in weights:
            if length in weight.lengths and (gap := gaps.get(weight.lengths[length][0].point)):
                yield {
                    **weight.facts([length], length, gap.reached, [0]),
                    "against": COIN,
                    "reference": gap.front,
                    **figure_columns(ABOVE, gap.above),
                }


def _in_units(settings: list[Setting], gain: Gain) -> list[Setting]:
    """Return settings in the units of their times, unless these do not matter."""
    return settings if gain == "acceptance" else [setting.timed for setting in settings]


def _front_points(run: TaskRun, session: int, length: int, gain: Gain, front: str) -> list[Setting]:
    """Return the points of a front; at equal acceptance those of a draft length."""
    points = front_of(run.sessions[session] if gain == "time" else run.settings, FRONTS[front])
    same = [point for point in points if point.draft_length == length]
    return same if gain == "acceptance" else _in_units(points, gain)


def above_front(
    run: TaskRun, method: MethodSettings, length: int, gain: Gain, front: str
) -> Iterator[Row]:
    """Return the distance of a method above a front, interpolated and at a measured point."""
    points = _front_points(run, method.session, length, gain, front)
    heads = _in_units(method.lengths[length], gain)
    gap = gap_between(heads, points, gain)
    facts = method.facts([length], length, gap.reached, list(range(len(heads)))) | {
        "against": front,
        "between": " to ".join(name or "none" for name in gap.between),
        "step": gap.step,
        "coarse": gap.coarse,
    }
    size = gap.reached.prompts_per_unit
    yield {**facts, "reference": gap.front, **figure_columns(ABOVE, gap.above, size)}
    measured = figure_columns(ABOVE_MEASURED, gap.above_measured, size)
    yield {**facts, "reference": gap.front_measured, **measured}


def at_equal_quality(run: TaskRun, method: MethodSettings, lengths: list[int]) -> Iterator[Row]:
    """Compare a method's speed with that of the static front at the method's quality."""
    settings = [setting.timed for setting in method.at(lengths)]
    front = [point.timed for point in front_of(run.sessions[method.session])]
    together = points_with_front(settings, front)
    reached, (fastest,) = together.estimates_with_fastest(range(len(settings)))
    points, chosen = slice(len(settings), len(settings) + len(front)), fastest.pooled
    quality, seconds = reached.quality[:, points], reached.seconds
    as_gain = Gains(quality, np.ones_like(quality))
    level = -front_quality(as_gain, -seconds[:, points], reached.quality[:, chosen])
    figure = estimate(level / seconds[:, chosen], reached.n, log=True)
    yield {
        **method.facts(lengths, lengths[fastest.point], reached, [chosen]),
        "against": FRONT,
        "against_quality": min(reached.quality[0, chosen], quality[0].max()),
        "reference": level[0],
        **figure_columns(TIMES, figure, reached.prompts_per_unit),
        "noise": run.noise.get(method.session, math.nan),
    }
