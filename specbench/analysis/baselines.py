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
from specbench.analysis.intervals import Interval, estimate, mean_over_seeds, ratio
from specbench.analysis.points import Points, Setting, shared_points
from specbench.analysis.sessions import MethodSettings, SeedGroup, TaskRun, alone_of, sd_of
from specbench.analysis.summary import text_differences
from specbench.errors import UsageError


def require_times(run: TaskRun, method: MethodSettings) -> Iterator[Row]:
    """Yield nothing; raise if ``sd`` was not timed in a method's session."""
    if sd_of(run.settings) and not sd_of(run.sessions[method.session]):
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
    settings = [method.lengths[length] for length in lengths]
    points = _timed_points([*settings, *alone])
    reached, (fastest,) = points.estimates_with_fastest(range(len(settings)))
    facts = method.facts(lengths, lengths[fastest], reached, -1)
    seconds, speed = reached.seconds, reached.tokens_per_second
    for metric, values in (
        (TIMES, seconds[:, len(settings)] / seconds[:, -1]),
        (TOKENS, speed[:, -1] / speed[:, len(settings)]),
    ):
        figure = estimate(values, reached.n, log=True)
        yield {
            **facts,
            "against": ALONE,
            "reference": seconds[0, len(settings)],
            **figure_columns(metric, figure, reached.prompts_per_unit),
            "noise": run.noise.get(method.session, math.nan),
        }


def seeds_versus_none(run: TaskRun, group: SeedGroup, length: int) -> Iterator[Row]:
    """Compare the mean speed of the heads of a recipe with no speculation."""
    alone = alone_of(run.timed(group.session))
    if not alone:
        return
    reached = _timed_points([*group.settings(length), *alone]).estimates()
    seconds, speed = reached.seconds, reached.tokens_per_second
    for metric, values in (
        (TIMES, seconds[:, [-1]] / seconds[:, :-1]),
        (TOKENS, speed[:, :-1] / speed[:, [-1]]),
    ):
        figure = mean_over_seeds(values, reached.n)
        yield {
            **group.facts(length, reached),
            "against": ALONE,
            "reference": seconds[0, -1],
            **figure_columns(metric, figure, reached.prompts_per_unit),
            "noise": run.noise.get(group.session, math.nan),
        }


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

    Without times of ``sd`` from the method's session, compare quality and acceptance only.
    """
    timed = sd_of(run.timed(method.session))
    strict = timed or sd_of(run.settings)
    if not strict:
        raise UsageError(f"{method.first.cell['task']} was not run with sd; run it too.")
    settings = [method.lengths[length] for length in lengths]
    sd = range(len(settings), len(settings) + len(strict))
    points = shared_points(_scored_alike([*settings, *strict]), sd)
    reached, fastest = points.estimates_with_fastest(range(len(settings)), sd)
    clock = reached
    if run.blocks > 0 and timed:  # times are measured in other units than quality
        points = _timed_points([*settings, *strict], sd)
        clock, fastest = points.estimates_with_fastest(range(len(settings)), sd)
    n, seconds, speed = reached.n, clock.seconds, clock.tokens_per_second
    this, chosen = -2, -1  # the method's point, and that of sd at the length chosen
    sd_length = [setting.draft_length for setting in strict]
    chosen_length = sd_length[fastest[1] - sd.start]
    facts = method.facts(lengths, lengths[fastest[0]], reached, this)
    facts["seconds"] = seconds[0, this]
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
        every_sd = pd.concat([setting.samples for setting in strict])
        accepted, tokens = reached.acceptance, reached.output_tokens
        texts = text_differences(settings[0].samples, every_sd, names)
        for metric, figure in (
            *((name, texts[of]) for name, of in TEXTS_LESS.items() if of in texts),
            (ACCEPTANCE_LESS, estimate(accepted[:, this] - accepted[:, same], n)),
            (TIMES, estimate(seconds[:, same] / seconds[:, this], clock.n, log=True)),
            (TOKENS, estimate(speed[:, this] / speed[:, same], clock.n, log=True)),
            (LENGTH, estimate(tokens[:, this] / tokens[:, same], n, log=True)),
        ):
            if figure.n and (timed or metric not in (TIMES, TOKENS)):  # else unknown
                yield row(SD, same, lengths[0], metric, figure)
    if len(timed) > 1:
        for metric, values in (
            (TIMES, seconds[:, chosen] / seconds[:, this]),
            (TOKENS, speed[:, this] / speed[:, chosen]),
        ):
            figure = estimate(values, clock.n, log=True)
            yield row(SD_CHOSEN, chosen, chosen_length, metric, figure)
    if timed and same is not None and chosen_length != lengths[0]:
        gain, saved = (seconds[:, same] - seconds[:, point] for point in (this, chosen))
        if estimate(gain, clock.n).low > 0:
            share = estimate(ratio(np.stack([saved, gain], axis=-1)), clock.n)
            yield row(SD_CHOSEN, chosen, chosen_length, SHARE, share)


def seeds_versus_sd(run: TaskRun, group: SeedGroup, length: int) -> Iterator[Row]:
    """Compare the mean over the heads of a recipe with plain SD at the same draft length."""
    timed = [sd for sd in sd_of(run.timed(group.session)) if sd.draft_length == length]
    strict = timed or [sd for sd in sd_of(run.settings) if sd.draft_length == length]
    if not strict:
        return
    settings = [*group.settings(length), strict[0]]
    reached = clock = shared_points(_scored_alike(settings)).estimates()
    if run.blocks > 0 and timed:  # times are measured in other units than quality
        clock = _timed_points(settings).estimates()
    quality, accepted, tokens = reached.quality, reached.acceptance, reached.output_tokens
    seconds, speed = clock.seconds, clock.tokens_per_second
    facts = group.facts(length, reached) | {
        "seconds": seconds[0, :-1].mean(),
        "against": SD,
        "against_draft_length": length,
        "against_quality": quality[0, -1],
        "reference": seconds[0, -1] if timed else math.nan,
        "noise": math.nan,
    }
    for metric, values in (
        (QUALITY_LESS, quality[:, :-1] - quality[:, [-1]]),
        (ACCEPTANCE_LESS, accepted[:, :-1] - accepted[:, [-1]]),
        (TIMES, seconds[:, [-1]] / seconds[:, :-1]),
        (TOKENS, speed[:, :-1] / speed[:, [-1]]),
        (LENGTH, tokens[:, :-1] / tokens[:, [-1]]),
    ):
        of_times = metric in (TIMES, TOKENS)
        if not np.isnan(values[0]).any() and (timed or not of_times):
            noise = {"noise": run.noise.get(group.session, math.nan)} if metric == TIMES else {}
            units = clock if of_times else reached
            figure = mean_over_seeds(values, units.n)
            yield {**facts, **figure_columns(metric, figure, units.prompts_per_unit), **noise}
