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
from specbench.analysis.intervals import estimate
from specbench.analysis.pareto import (
    front_of,
    front_quality,
    gap_between,
    gaps_from_coin,
    points_with_front,
)
from specbench.analysis.points import Gain, Gains, Setting
from specbench.analysis.sessions import MethodSettings, TaskRun, methods_of


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
    points = slice(len(settings), len(settings) + len(front))
    quality, seconds = reached.quality[:, points], reached.seconds
    as_gain = Gains(quality, np.ones_like(quality))
    level = -front_quality(as_gain, -seconds[:, points], reached.quality[:, -1])
    figure = estimate(level / seconds[:, -1], reached.n, log=True)
    yield {
        **method.facts(lengths, lengths[fastest], reached, [-1]),
        "against": FRONT,
        "against_quality": min(reached.quality[0, -1], quality[0].max()),
        "reference": level[0],
        **figure_columns(TIMES, figure, reached.prompts_per_unit),
        "noise": run.noise.get(method.session, math.nan),
    }
