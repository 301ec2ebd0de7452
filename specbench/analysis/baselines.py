"""Compare methods with no speculation and with plain SD, each at its own quality."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from specbench.analysis.comparison import (
    ACCEPTANCE_LESS,
    ALONE,
    LENGTH,
    QUALITY_LESS,
    SD,
    SD_CHOSEN,
    SHARE,
    TEXTS_LESS,
    TIMES,
    TOKENS,
    Row,
    figure_columns,
)
from specbench.analysis.intervals import Floats, Interval, estimate, estimate_of_heads, ratio
from specbench.analysis.points import PointEstimates, Points, Setting, shared_points
from specbench.analysis.scores import text_differences
from specbench.analysis.sessions import MethodSettings, TaskRun, alone_of, sd_of
from specbench.errors import UsageError


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
    points = _timed_points([*settings, *alone])
    reached, (fastest,) = points.estimates_with_fastest(range(len(settings)))
    this, baseline = method.points(-1), len(settings)
    for metric, values in _speed_ratios(reached, this, baseline):
        figure = estimate_of_heads(values, reached.n, log=True)
        yield {
            **method.facts(lengths, settings[fastest].draft_length, reached, this),
            "against": ALONE,
            "reference": reached.seconds[0, baseline],
            **figure_columns(metric, figure, reached.prompts_per_unit),
            "noise": run.noise.get(method.session, math.nan),
        }


def _speed_ratios(
    clock: PointEstimates, points: list[int], baseline: int
) -> Iterator[tuple[str, Floats]]:
    """Yield both ratios of speed [1 + RESAMPLES, points] of some points to a baseline."""
    seconds, speed = clock.seconds, clock.tokens_per_second
    yield TIMES, seconds[:, [baseline]] / seconds[:, points]
    yield TOKENS, speed[:, points] / speed[:, [baseline]]


def _timed_points(settings: list[Setting], one_law: Sequence[int] = ()) -> Points:
    """Return points of settings in the units of their times."""
    return shared_points([setting.timed for setting in _scored_alike(settings)], one_law)


def _scored_alike(settings: list[Setting]) -> list[Setting]:
    """Return settings of which all have a quality or none has."""
    if all(setting.has_quality for setting in settings):
        return settings
    return [setting.without_quality() for setting in settings]


def versus_sd(
    run: TaskRun, method: MethodSettings, lengths: list[int], names: Sequence[str]
) -> Iterator[Row]:
    """Compare a method, at one draft length or at its fastest of several, with plain SD.

    Without times of ``sd`` from the method's session, compare quality and acceptance only. The
    figures ``names`` of texts are compared for a single head only.
    """
    timed = sd_of(run.timed(method.session))
    strict = timed or sd_of(run.settings)
    if not strict:
        raise UsageError(f"{method.first.cell['task']} was not run with sd; run it too.")
    settings = method.at(lengths)
    sd = range(len(settings), len(settings) + len(strict))
    points = shared_points(_scored_alike([*settings, *strict]), sd)
    reached, fastest = points.estimates_with_fastest(range(len(settings)), sd)
    clock = reached
    if run.blocks > 0 and timed:  # times are measured in other units than quality
        points = _timed_points([*settings, *strict], sd)
        clock, fastest = points.estimates_with_fastest(range(len(settings)), sd)
    n, seconds = reached.n, clock.seconds
    this, chosen = method.points(-2), -1  # the method's points, and that of sd at the length chosen
    sd_length = [setting.draft_length for setting in strict]
    chosen_length = sd_length[fastest[1] - sd.start]
    facts = method.facts(lengths, settings[fastest[0]].draft_length, reached, this)
    facts["seconds"] = seconds[0, this].mean()
    noise = run.noise.get(method.session, math.nan)

    def row(against: str, point: int, length: int, metric: str, figure: Interval) -> Row:
        of_times = metric in (TIMES, TOKENS, SHARE)
        return facts | {
            "against": against,
            "against_draft_length": length,
            "against_quality": reached.quality[0, point],
            "reference": seconds[0, point] if timed else math.nan,
            **figure_columns(metric, figure, clock.prompts_per_unit if of_times else 1),
            "noise": noise if metric in (TIMES, TOKENS) else math.nan,
        }

    same = None
    if len(lengths) == 1 and lengths[0] in sd_length:
        same = sd[sd_length.index(lengths[0])]
        accepted, tokens = reached.acceptance, reached.output_tokens
        figures = _text_differences(settings, strict, names, reached, this, same)
        less = accepted[:, this] - accepted[:, [same]]
        figures[ACCEPTANCE_LESS] = estimate_of_heads(less, n)
        if timed:
            for metric, values in _speed_ratios(clock, this, same):
                figures[metric] = estimate_of_heads(values, clock.n, log=True)
        longer = tokens[:, this] / tokens[:, [same]]
        figures[LENGTH] = estimate_of_heads(longer, n, log=True)
        for metric, figure in figures.items():
            if figure.n:  # else unknown
                yield row(SD, same, lengths[0], metric, figure)
    if len(method.heads) > 1:
        return
    if len(timed) > 1:
        for metric, values in _speed_ratios(clock, this, chosen):
            figure = estimate_of_heads(values, clock.n, log=True)
            yield row(SD_CHOSEN, chosen, chosen_length, metric, figure)
    if timed and same is not None and chosen_length != lengths[0]:
        gain = seconds[:, same] - seconds[:, this[0]]
        saved = seconds[:, same] - seconds[:, chosen]
        if estimate(gain, clock.n).low > 0:
            share = estimate(ratio(np.stack([saved, gain], axis=-1)), clock.n)
            yield row(SD_CHOSEN, chosen, chosen_length, SHARE, share)


def _text_differences(
    settings: list[Setting],
    strict: list[Setting],
    names: Sequence[str],
    reached: PointEstimates,
    points: list[int],
    same: int,
) -> dict[str, Interval]:
    """Return the differences of texts from those of ``sd``; of several heads that of quality."""
    if len(settings) > 1:
        less = reached.quality[:, points] - reached.quality[:, [same]]
        known = not np.isnan(less[0]).any()
        return {QUALITY_LESS: estimate_of_heads(less, reached.n)} if known else {}
    every_sd = pd.concat([setting.samples for setting in strict])
    texts = text_differences(settings[0].samples, every_sd, names)
    return {name: texts[of] for name, of in TEXTS_LESS.items() if of in texts}
