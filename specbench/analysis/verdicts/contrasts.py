"""The rows of a comparison: methods beside no speculation, plain SD, fronts and a coin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.estimates import (
    ABOVE,
    ABOVE_MEASURED,
    ACCEPTANCE_LESS,
    AT_LIMIT_LESS,
    COMPLETED_LESS,
    LENGTH,
    QUALITY_LESS,
    REPETITION_LESS,
    SHARE,
    SPEED,
    TIMES,
)
from specbench.analysis.statistics.front import (
    STATIC_FAMILY,
    front_of,
    front_quality,
    gap_between,
    gaps_from_coin,
    points_with_front,
)
from specbench.analysis.statistics.intervals import Interval, estimate, ratio
from specbench.analysis.statistics.points import (
    TARGET,
    Gain,
    Gains,
    scored_alike,
    shared_points,
    timed_points,
    with_pooled_target,
)
from specbench.analysis.statistics.sessions import MethodSettings, TaskRun, methods_of, sd_of
from specbench.analysis.tables.shown import PHASES
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS, METHOD_COLUMNS

Row = dict[Any, Any]  # a setting with its figures, see ``estimates.pivot``
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
#: Contrasts of speed, and of texts with those of plain SD.
SPEEDS = (TIMES, SPEED)
TEXTS = (QUALITY_LESS, COMPLETED_LESS, AT_LIMIT_LESS, REPETITION_LESS)

#: What ``sd`` is, for a note below tables.
POOLED = "minus sd: quality is compared with all texts of sd and autoregressive: one distribution."
SAME_DRAFTER = (
    "Speeds are relative to sd with the same drafter; that of sd with another drafter, to plain sd."
)
#: The columns that the settings of a task of a run share.
TASK_RUN = ["run_id", "pair", "temperature", "engine", "batch_size", "task", "quality_metric"]
#: One row per figure: ``value`` with its interval over ``n`` prompts.
#:
#: ``points`` counts the settings that a row chose from or combined. ``draft_length`` is the
#: method's, or the chosen one; blank if the row combines several. ``head`` of a mean over seeds is
#: that of its recipe. ``quality``, ``acceptance``, ``seconds`` (per sample) and ``PHASES`` are the
#: method's. ``reference`` is the baseline's value: a quality, or seconds per sample at
#: ``against_quality``, which for the front is the method's quality, capped at the front's best.
#: ``between`` names the front's points of next lower and next higher gain; ``step`` is the
#: difference of their qualities, and ``coarse`` whether it is large (``COARSE``). ``least``
#: is the lead over the best mixture of the same prompts, where ``value`` is a lead. ``noise``
#: is a factor: speed-ups from 1 / noise to noise can be noise of the times; blank if ``sd`` was not
#: timed twice. ``seeds`` counts the heads of one recipe of which the row is a mean, 1 for each of
#: them alone; it is blank for all other methods. ``missing`` counts prompts that other settings of
#: the run have and the method lacks. ``blocks`` counts the blocks of a run in batches, see
#: ``analysis.statistics.points``.
COMPARISON = (
    *(*TASK_RUN, "blocks", "at", *METHOD_COLUMNS, "label", "points", "seeds", "missing"),
    *("draft_length", "drafter", "quality", "acceptance", "seconds", *PHASES),
    *("against", "against_draft_length", "against_quality", "reference", "between", "step"),
    *("coarse", "metric", "value", "ci_low", "ci_high", "least", "n", "noise"),
)


def require_times(run: TaskRun, method: MethodSettings) -> tuple[()]:
    """Return no rows; raise if ``sd`` was not timed in a method's session."""
    if sd_of(run.settings) and not sd_of(run.timed(method.session)):
        raise UsageError(
            f"{method.label} and sd were timed in different sessions, so they have no speed-up: "
            "measure them in a new run"
        )
    return ()


def versus_none(run: TaskRun, method: MethodSettings, lengths: list[int]) -> Iterator[Row]:
    """Compare the speed of a method with no speculation, in the method's session."""
    alone = [setting for setting in run.timed(method.session) if setting.method == ALONE]
    if not alone:
        return
    settings = method.at(lengths)
    points = timed_points([*settings, *alone])
    reached, (fastest,) = points.estimates_with_fastest(range(len(settings)))
    of_method, baseline = method.points(fastest), len(settings)
    for metric in SPEEDS:
        figure = reached.contrast(metric, of_method, baseline)
        yield {
            **method.facts(lengths, settings[fastest.point].draft_length, reached, of_method),
            "against": ALONE,
            "reference": reached.seconds[0, baseline],
            **estimates.columns(metric, figure, reached.prompts_per_unit),
            "noise": run.noise.get(method.session, math.nan),
        }


def versus_sd(
    run: TaskRun, method: MethodSettings, lengths: list[int], texts: Sequence[str]
) -> Iterator[Row]:
    """Compare a method, at one draft length or at its fastest of several, with plain SD.

    Without times of ``sd`` from the method's session, compare quality and acceptance only. The
    contrasts ``texts`` are made for a single head only; several have that of quality.
    """
    timed = sd_of(run.timed(method.session))
    strict = timed or sd_of(run.settings)
    if not strict:
        raise UsageError(f"{method.first.cell['task']} was not run with sd; run it too.")
    settings = method.at(lengths)
    target = [setting for setting in run.settings if setting.method in TARGET]
    every = [*settings, *with_pooled_target(strict, target)]
    groups = range(len(settings)), range(len(settings), len(every))
    together = shared_points(scored_alike(every))
    reached, (fastest, fastest_sd) = together.estimates_with_fastest(*groups)
    clock = reached  # the same in the units of times
    if run.blocks > 0 and timed:
        clock, (fastest, fastest_sd) = timed_points(every).estimates_with_fastest(*groups)
    points = method.points(fastest)
    facts = method.facts(lengths, settings[fastest.point].draft_length, reached, points)
    facts["seconds"] = clock.seconds[0, points].mean()
    noise = run.noise.get(method.session, math.nan)

    def row(against: str, point: int, length: int, metric: str, figure: Interval) -> Row:
        """Return the row of a contrast with a point of ``sd``."""
        of_times = metric in (*SPEEDS, SHARE)
        return facts | {
            "against": against,
            "against_draft_length": length,
            "against_quality": reached.quality[0, point],
            "reference": clock.seconds[0, point] if timed else math.nan,
            **estimates.columns(metric, figure, clock.prompts_per_unit if of_times else 1),
            "noise": noise if metric in SPEEDS else math.nan,
        }

    # The point of ``sd`` at the method's only draft length.
    same = next((point for point in groups[1] if [every[point].draft_length] == lengths), None)
    if same is not None:
        if len(method.heads) > 1:
            figures = {QUALITY_LESS: together.quality_less(reached, points, same)}
        else:
            of_target = pd.concat([setting.samples for setting in target])
            figures = {
                name: estimates.contrast(settings[0].samples, of_target, name) for name in texts
            }
        figures[ACCEPTANCE_LESS] = reached.contrast(ACCEPTANCE_LESS, points, same)
        for metric in SPEEDS if timed else ():
            figures[metric] = clock.contrast(metric, points, same)
        figures[LENGTH] = reached.contrast(LENGTH, points, same)
        for metric, figure in figures.items():
            if figure.n and not (metric == QUALITY_LESS and np.isnan(figure.value)):
                yield row(SD, same, lengths[0], metric, figure)
    if len(method.heads) > 1 or not timed:
        return
    chosen, length = fastest_sd.pooled, every[fastest_sd.point].draft_length
    for metric in SPEEDS if len(strict) > 1 else ():
        yield row(SD_CHOSEN, chosen, length, metric, clock.contrast(metric, points, chosen))
    if same is not None and length != lengths[0]:
        gain = clock.seconds[:, same] - clock.seconds[:, points[0]]
        saved = clock.seconds[:, same] - clock.seconds[:, chosen]
        if estimate(gain, clock.n).low > 0:
            share = estimate(ratio(np.stack([saved, gain], axis=-1)), clock.n)
            yield row(SD_CHOSEN, chosen, length, SHARE, share)


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
                    **estimates.columns(ABOVE, gap.above),
                }


def above_front(
    run: TaskRun, method: MethodSettings, length: int, gain: Gain, front: str
) -> Iterator[Row]:
    """Return the distance of a method above a front, at its own gain and at a measured point.

    At equal acceptance, the front has the method's draft length; at equal time, all of the session.
    """
    heads = method.lengths[length]
    if gain == "acceptance":
        every = front_of(run.settings, FRONTS[front])
        points = [point for point in every if point.draft_length == length]
    else:  # in the units of times
        heads = [head.timed for head in heads]
        every = front_of(run.sessions[method.session], FRONTS[front])
        points = [point.timed for point in every]
    gap = gap_between(heads, points, gain)
    if np.isnan(gap.reached.gains(gain).value[0, : len(heads)]).any():  # nothing was drafted
        return
    low, high = gap.between
    outside = f"below {high}" if high else f"beyond {low or 'the front'}"
    facts = method.facts([length], length, gap.reached, list(range(len(heads)))) | {
        "against": front,
        "between": f"{low} to {high}" if low and high else outside,
        "step": gap.step,
        "coarse": gap.coarse,
    }
    size = gap.reached.prompts_per_unit
    yield {**facts, "reference": gap.front, **estimates.columns(ABOVE, gap.above, size)}
    measured = estimates.columns(ABOVE_MEASURED, gap.above_measured, size)
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
        **estimates.columns(TIMES, figure, reached.prompts_per_unit),
        "noise": run.noise.get(method.session, math.nan),
    }
