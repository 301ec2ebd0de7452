"""Compare methods with the static front, and static weights with a coin."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from specbench.analysis.comparison import (
    ABOVE,
    ABOVE_MEASURED,
    COIN,
    FRONT,
    FRONTS,
    TIMES,
    Row,
    figure_columns,
)
from specbench.analysis.intervals import Floats, estimate
from specbench.analysis.pareto import (
    STATIC_FAMILY,
    Gap,
    MeanGap,
    front_of,
    front_quality,
    gap_between,
    gap_of_seeds,
    gaps_from_coin,
    hypervolume,
    points_with_front,
)
from specbench.analysis.points import Gain, Gains, Setting, shared_points
from specbench.analysis.sessions import MethodSettings, SeedGroup, TaskRun, methods_of
from specbench.errors import UsageError
from specbench.methods.drafters import MODEL
from specbench.methods.registry import AUTOREGRESSIVE


def versus_coin(run: TaskRun) -> Iterator[Row]:
    """Place each static weight above or below a coin between ``sd`` and the draft."""
    weights = methods_of(run.settings, ["static"])[0]
    for length in dict.fromkeys(length for weight in weights for length in weight.lengths):
        points = [point for point in front_of(run.settings) if point.draft_length == length]
        gaps = gaps_from_coin(points)
        for weight in weights:
            if length in weight.lengths and (gap := gaps.get(weight.lengths[length].point)):
                yield {
                    **weight.facts([length], length, gap.reached, 0),
                    "against": COIN,
                    "reference": gap.front,
                    **figure_columns(ABOVE, gap.above),
                }


def seeds_above_front(
    run: TaskRun, group: SeedGroup, length: int, gain: Gain, front: str
) -> Iterator[Row]:
    """Return the mean distance of the heads of a recipe above a front."""
    points = _front_points(run, group.session, length, gain, front)
    gap = gap_of_seeds(_in_units(group.settings(length), gain), points, gain)
    facts = {**group.facts(length, gap.reached), "against": front, "coarse": gap.coarse}
    yield from _distances(gap, facts)


def _distances(gap: Gap | MeanGap, facts: Row) -> Iterator[Row]:
    """Yield the distances above the interpolated and above the measured front."""
    size = gap.reached.prompts_per_unit
    yield {**facts, "reference": gap.front, **figure_columns(ABOVE, gap.above, size)}
    measured = figure_columns(ABOVE_MEASURED, gap.above_measured, size)
    yield {**facts, "reference": gap.front_measured, **measured}


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
    """Return the distance of a method above a front."""
    points = _front_points(run, method.session, length, gain, front)
    (setting,) = _in_units([method.lengths[length]], gain)
    gap = gap_between(setting, points, gain)
    facts = method.facts([length], length, gap.reached, 0) | {
        "against": front,
        "between": " to ".join(name or "none" for name in gap.between),
        "step": gap.step,
        "coarse": gap.coarse,
    }
    yield from _distances(gap, facts)


def at_equal_quality(run: TaskRun, method: MethodSettings, lengths: list[int]) -> Iterator[Row]:
    """Compare a method's speed with that of the static front at the method's quality."""
    settings = [method.lengths[n].timed for n in lengths]
    front = [point.timed for point in front_of(run.sessions[method.session])]
    together = points_with_front(settings, front)
    reached, (fastest,) = together.estimates_with_fastest(range(len(settings)))
    points = slice(len(settings), len(settings) + len(front))
    quality, seconds = reached.quality[:, points], reached.seconds
    as_gain = Gains(quality, np.ones_like(quality))
    level = -front_quality(as_gain, -seconds[:, points], reached.quality[:, -1])
    figure = estimate(level / seconds[:, -1], reached.n, log=True)
    yield {
        **method.facts(lengths, lengths[fastest], reached, -1),
        "against": FRONT,
        "against_quality": min(reached.quality[0, -1], quality[0].max()),
        "reference": level[0],
        **figure_columns(TIMES, figure, reached.prompts_per_unit),
        "noise": run.noise.get(method.session, math.nan),
    }


def volume_of(run: list[Setting], name: str, length: int | None) -> Iterator[Row]:
    """Return a method's hypervolume: acceptance at one draft length, or speed-up over all."""
    gain: Gain = "speedup" if length is None else "acceptance"
    nothing = 1.0 if length is None else 0.0
    run = _in_units(run, gain)
    last = [setting for setting in run if setting.method == AUTOREGRESSIVE and length is None]
    if length is None and not last:
        raise UsageError(f"{run[0].cell['task']} was not run with autoregressive; run it too.")
    front = front_of(run)
    strict, statics = sum(setting.emits_target for setting in front), len(front)
    settings = [s for s in run if s.method == name and name not in STATIC_FAMILY]
    reached = shared_points([*front, *settings, *last], range(strict)).estimates()
    within = {"sd": slice(0, strict), "static": slice(0, statics)}
    points_of_method = within.get(name, slice(statics, statics + len(settings)))

    def volume(points: slice) -> Floats:
        gains = reached.gains(gain).of(points)
        return hypervolume(gains, reached.quality[:, points], (nothing, 0.0))

    metric = f"quality_x_{gain}"
    drafter = next(setting.drafter for setting in run if setting.drafter)
    label = f"{name}, with sd" if name == "static" else name
    facts = {
        "method": name,
        "label": label if drafter == MODEL else f"{label}, {drafter}",
        "points": points_of_method.stop - points_of_method.start,
        "draft_length": length,
        "drafter": drafter,
    }
    size = reached.prompts_per_unit
    yield {**facts, **figure_columns(metric, estimate(volume(points_of_method), reached.n), size)}
    if strict < statics and not all(setting.emits_target for setting in settings):
        static, together = volume(within["static"]), volume(slice(0, points_of_method.stop))
        added = estimate(np.maximum(together - static, 0.0), reached.n)  # negative only by rounding
        columns = figure_columns(metric, added, size)
        yield {**facts, "against": FRONT, "reference": static[0], **columns}
