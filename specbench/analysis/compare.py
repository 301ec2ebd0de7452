"""Compare methods with plain SD and with fronts at equal acceptance, time and quality.

The main front is the randomised front of ``sd`` and the static ensemble. A second one also includes
``sharpened`` and ``cooled``, as controls for rules that sharpen the target. A method that emits the
target's own distribution relaxes nothing and has no distance from a front; it is compared with
``sd`` alone.

All comparisons are paired by prompt and stay within one run, because times differ by a few per cent
between runs. Within a run, times are compared only within a session: cells that were added to the
run later have times of ``sd`` from their own session (column ``timing`` of the samples). If ``sd``
was timed twice in a session, ``noise`` says how much the times of equal texts differ.

The acceptance of a weight depends on the draft length. At equal acceptance a method is therefore
compared with the static points of its own draft length; at equal time or quality, with those of
every draft length in the session, since a user can choose any of them. Drafters are compared
separately, each with its own ``sd`` and front; ``sd`` itself is also compared between drafters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from specbench.analysis.intervals import Floats, Interval, estimate, mean_over_seeds, ratio
from specbench.analysis.pareto import (
    STATIC_FAMILY,
    front_of,
    front_quality,
    gap_between,
    gap_of_seeds,
    gaps_from_coin,
    hypervolume,
    points_with_front,
)
from specbench.analysis.points import (
    GAINS,
    Gain,
    Gains,
    Setting,
    shared_points,
)
from specbench.analysis.sessions import (
    MethodSettings,
    SeedGroup,
    TaskRun,
    alone_of,
    methods_of,
    sd_of,
)
from specbench.analysis.summary import (
    AT_LIMIT,
    COMPLETED,
    QUALITY,
    REPETITION,
    text_differences,
)
from specbench.errors import UsageError
from specbench.methods.drafters import MODEL
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS

#: The quantity held equal; the hypervolume summarises a whole front instead.
At = Literal["acceptance", "time", "quality", "hypervolume"]
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

BATCHED = (
    "texts that are decoded together share their time, so times per sample are not compared: "
    "measure them with `--batch-size 1`, or throughput with `specbench bench --batch-size 1,8`"
)

_TASK = ["run_id", "pair", "temperature", "engine", "batch_size", "task", "quality_metric"]
#: One row per figure: ``value`` with its interval over ``n`` prompts.
#:
#: ``points`` counts the settings that a row chose from or combined. ``draft_length`` is the
#: method's, or the chosen one; blank if the row combines several. ``quality``, ``acceptance`` and
#: ``seconds`` (per sample) belong to the method. ``reference`` is the baseline's value: a quality,
#: a volume, or seconds per sample at ``against_quality``, which for the front is the method's
#: quality, capped at the front's best. ``between`` names the front's points of next lower and next
#: higher gain; ``step`` is the difference of their qualities, and ``coarse`` whether it is large
#: (``pareto.COARSE``). ``noise`` is a factor: speed-ups from 1 / noise to noise can be noise of the
#: times; blank if ``sd`` was not timed twice. ``seeds`` counts the heads of one recipe of which the
#: row is a mean, 1 for each of them alone; it is blank for all other methods. ``missing`` counts
#: prompts that other settings of the run have and the method lacks.
COMPARISON = (
    *(*_TASK, "at", "method", "label", "points", "seeds", "missing", "draft_length"),
    *("drafter", "quality", "acceptance", "seconds"),
    *("against", "against_draft_length", "against_quality", "reference", "between", "step"),
    *("coarse", "metric", "value", "ci_low", "ci_high", "n", "noise"),
)

Row = dict[str, Any]
Part = Callable[[], Iterator[Row]]


class Compared(NamedTuple):
    """A comparison with columns ``COMPARISON``, and notes on missing or coarse parts."""

    rows: pd.DataFrame
    notes: list[str]


def compare(
    samples: pd.DataFrame,
    ats: Sequence[At] = ATS,
    methods: Collection[str] | None = None,
    texts: Sequence[str] = (*TEXTS_LESS.values(),),
) -> Compared:
    """Compare methods with the static front and with plain SD, with 95 % intervals.

    Own quality (always included): the speed of each method and of SD relative to no speculation,
    and paired differences between the method and plain SD at the same draft length. Against plain
    SD at its fastest draft length, ``share_of_gain`` is the share of the method's time saving that
    plain SD reaches by changing N alone; it is given only where the saving is significant. A method
    run with several draft lengths has another row at its fastest one
    (``Points.estimates_with_fastest``).

    Equal acceptance and equal time: ``quality_above`` the front, and ``quality_above_measured`` at
    the front's nearest point of lower gain, without interpolation. Equal acceptance also places
    each static weight above or below a coin between SD and the draft. Equal quality:
    ``times_as_fast`` as the static front, up to the front's best quality.

    Hypervolume: the area under the randomised front of a method's settings. It is measured in
    quality times acceptance above (0, 0) for each draft length, and in quality times speed-up above
    a quality of 0 and a speed-up of 1 over all draft lengths. ``static`` includes ``sd``. The area
    grows with the number of settings, ``points``; a second row gives the area that the method adds
    to that of the static family. Both areas use the best of noisy points and are biased upwards.

    Runs are compared separately, and times of texts that were decoded in batches not at all.
    ``texts`` are the figures of texts to compare with those of plain SD; each takes a bootstrap per
    method. ``methods`` defaults to all methods that draft; without others, to ``static``. Rows of
    ``sd`` itself and of the coin come only with the default.

    Raises:
        UsageError: No comparison is possible with these samples.
    """
    rows: list[Row] = []
    notes: dict[str, None] = {}
    for key, run in samples.groupby(_TASK, sort=False, dropna=False):
        shared = dict(zip(_TASK, key, strict=True))
        if shared["batch_size"] > 1:
            notes[BATCHED] = None
        for at, part in _parts_by_drafter(TaskRun.of(run), ats, methods, texts):
            try:
                rows += [{**shared, "at": at, **row} for row in part()]
            except UsageError as error:
                notes[str(error)] = None
    if not rows:
        missing = "the runs hold none of these methods: name others"
        if methods is None:
            missing = "the runs hold no method to compare with sd: measure one too"
        raise UsageError(next(iter(notes), missing))
    found = pd.DataFrame(rows, columns=list(COMPARISON))
    return Compared(found, [*notes, *_cautions(found)])


def _parts_by_drafter(
    run: TaskRun, ats: Sequence[At], names: Collection[str] | None, texts: Sequence[str]
) -> Iterator[tuple[str, Part]]:
    """Yield the parts of each drafter, and of ``sd`` with each further drafter beside the first."""
    drafters = dict.fromkeys(setting.drafter for setting in run.settings if setting.drafter)
    first, *others = [run.of_drafter(name) for name in drafters if name] or [run]
    for other in others:
        for one in methods_of(other.settings, ["sd"])[0]:
            yield from ((OWN, partial(_versus_sd, first, one, n, texts)) for n in one.choices)
    for part in (first, *others):
        yield from _parts(part, ats, names, texts)


def _parts(
    run: TaskRun, ats: Sequence[At], names: Collection[str] | None, texts: Sequence[str]
) -> Iterator[tuple[str, Part]]:
    """Yield the quantity held equal and a function that makes its rows, in table order."""
    methods, groups = methods_of(run.settings, names)
    strict = methods_of(run.settings, ["sd"])[0] if names is None else []
    for one in (*strict, *methods):
        yield from ((OWN, partial(_versus_none, run, one, n)) for n in one.choices)
    for group in groups:
        yield from ((OWN, partial(_seeds_versus_none, run, group, n)) for n in group.lengths)
    for one in methods:
        yield from ((OWN, partial(_versus_sd, run, one, n, texts)) for n in one.choices)
        if len(run.sessions) > 1:
            yield OWN, partial(_require_times, run, one)
    for group in groups:
        yield from ((OWN, partial(_seeds_versus_sd, run, group, n)) for n in group.lengths)
    relaxed = [
        one for one in methods if not (one.first.emits_target or one.first.method in STATIC_FAMILY)
    ]
    has_control = any(setting.method in CONTROLS for setting in run.settings)
    for gain in (at for at in GAINS if at in ats and (run.sessions or at == "acceptance")):
        for one in relaxed:
            controlled = has_control and one.first.method not in CONTROLS
            for front in (FRONT, CONTROL)[: 1 + controlled]:
                yield from ((gain, partial(_gap, run, one, n, gain, front)) for n in one.lengths)
        for group in groups:
            for front in (FRONT, CONTROL)[: 1 + has_control]:
                lengths = group.lengths
                yield from (
                    (gain, partial(_seeds_gap, run, group, n, gain, front)) for n in lengths
                )
    if "acceptance" in ats and names is None:
        yield "acceptance", partial(_versus_coin, run)
    if "quality" in ats and run.sessions:
        for one in relaxed:
            yield from (("quality", partial(_saving, run, one, n)) for n in one.choices)
    if "hypervolume" in ats:
        drafting = [setting for setting in run.settings if setting.draft_length > 0]
        for name in dict.fromkeys(setting.method for setting in drafting):
            if names is None or name in {*names, *STATIC_FAMILY}:
                own = [setting for setting in drafting if setting.method == name]
                for length in sorted({setting.draft_length for setting in own}):
                    some = [setting for setting in drafting if setting.draft_length == length]
                    yield "hypervolume", partial(_volume, some, name, length)
                for session in sorted(run.sessions.keys() & {setting.session for setting in own}):
                    yield "hypervolume", partial(_volume, run.sessions[session], name, None)


def _require_times(run: TaskRun, method: MethodSettings) -> Iterator[Row]:
    """Yield nothing; raise if ``sd`` was not timed in a method's session."""
    if sd_of(run.settings) and not sd_of(run.sessions[method.session]):
        raise UsageError(
            f"{method.label} and sd were timed in different sessions, so they have no speed-up: "
            "measure them in a new run"
        )
    yield from ()


def _versus_none(run: TaskRun, method: MethodSettings, lengths: list[int]) -> Iterator[Row]:
    """Compare the speed of a method with no speculation, in the method's session."""
    alone = alone_of(run.timed(method.session))
    if not alone:
        return
    own = [method.lengths[length] for length in lengths]
    points = shared_points(_scored_alike([*own, *alone]))
    reached, (fastest,) = points.estimates_with_fastest(range(len(own)))
    facts = method.facts(lengths, lengths[fastest], reached, -1)
    seconds, speed = reached.seconds, reached.tokens_per_second
    for metric, values in (
        (TIMES, seconds[:, len(own)] / seconds[:, -1]),
        (TOKENS, speed[:, -1] / speed[:, len(own)]),
    ):
        yield {
            **facts,
            "against": ALONE,
            "reference": seconds[0, len(own)],
            **figure_columns(metric, estimate(values, reached.n, log=True)),
            "noise": run.noise.get(method.session, math.nan),
        }


def _seeds_versus_none(run: TaskRun, group: SeedGroup, length: int) -> Iterator[Row]:
    """Compare the mean speed of the heads of a recipe with no speculation."""
    alone = alone_of(run.timed(group.session))
    if not alone:
        return
    reached = shared_points(_scored_alike([*group.settings(length), *alone])).estimates()
    seconds, speed = reached.seconds, reached.tokens_per_second
    for metric, values in (
        (TIMES, seconds[:, [-1]] / seconds[:, :-1]),
        (TOKENS, speed[:, :-1] / speed[:, [-1]]),
    ):
        yield {
            **group.facts(length, reached),
            "against": ALONE,
            "reference": seconds[0, -1],
            **figure_columns(metric, mean_over_seeds(values, reached.n)),
            "noise": run.noise.get(group.session, math.nan),
        }


def _versus_coin(run: TaskRun) -> Iterator[Row]:
    """Place each static weight above or below a coin between ``sd`` and the draft."""
    weights = methods_of(run.settings, ["static"])[0]
    for length in dict.fromkeys(length for one in weights for length in one.lengths):
        points = [point for point in front_of(run.settings) if point.draft_length == length]
        gaps = gaps_from_coin(points)
        for one in weights:
            if length in one.lengths and (gap := gaps.get(one.lengths[length].point)):
                yield {
                    **one.facts([length], length, gap.reached, 0),
                    "against": COIN,
                    "reference": gap.front,
                    **figure_columns(ABOVE, gap.above),
                }


def _scored_alike(settings: list[Setting]) -> list[Setting]:
    """Return settings of which all have a quality or none has."""
    if all(setting.has_quality for setting in settings):
        return settings
    return [setting.without_quality() for setting in settings]


def _versus_sd(
    run: TaskRun, method: MethodSettings, lengths: list[int], names: Sequence[str]
) -> Iterator[Row]:
    """Compare a method, at one draft length or at its fastest of several, with plain SD.

    Without times of ``sd`` from the method's session, compare quality and acceptance only.
    """
    timed = sd_of(run.timed(method.session))
    strict = timed or sd_of(run.settings)
    if not strict:
        raise UsageError(f"{method.first.cell['task']} was not run with sd; run it too.")
    own = [method.lengths[length] for length in lengths]
    sd = range(len(own), len(own) + len(strict))
    points = shared_points(_scored_alike([*own, *strict]), sd)
    reached, fastest = points.estimates_with_fastest(range(len(own)), sd)
    seconds, speed, n = reached.seconds, reached.tokens_per_second, reached.n
    this, chosen = -2, -1  # the method's point, and that of sd at the length chosen
    sd_length = [setting.draft_length for setting in strict]
    chosen_length = sd_length[fastest[1] - sd.start]
    facts = method.facts(lengths, lengths[fastest[0]], reached, this)
    noise = run.noise.get(method.session, math.nan)

    def row(against: str, point: int, length: int, metric: str, found: Interval) -> Row:
        return facts | {
            "against": against,
            "against_draft_length": length,
            "against_quality": reached.quality[0, point],
            "reference": seconds[0, point] if timed else math.nan,
            **figure_columns(metric, found),
            "noise": noise if metric in (TIMES, TOKENS) else math.nan,
        }

    same = None
    if len(lengths) == 1 and lengths[0] in sd_length:
        same = sd[sd_length.index(lengths[0])]
        every_sd = pd.concat([setting.samples for setting in strict])
        accepted, tokens = reached.acceptance, reached.output_tokens
        texts = text_differences(own[0].samples, every_sd, names)
        for metric, found in (
            *((name, texts[of]) for name, of in TEXTS_LESS.items() if of in texts),
            (ACCEPTANCE_LESS, estimate(accepted[:, this] - accepted[:, same], n)),
            (TIMES, estimate(seconds[:, same] / seconds[:, this], n, log=True)),
            (TOKENS, estimate(speed[:, this] / speed[:, same], n, log=True)),
            (LENGTH, estimate(tokens[:, this] / tokens[:, same], n, log=True)),
        ):
            if found.n and (timed or metric not in (TIMES, TOKENS)):  # else unknown
                yield row(SD, same, lengths[0], metric, found)
    if len(timed) > 1:
        times = estimate(seconds[:, chosen] / seconds[:, this], n, log=True)
        yield row(SD_CHOSEN, chosen, chosen_length, TIMES, times)
    if timed and same is not None and chosen_length != lengths[0]:
        gain, saved = (seconds[:, same] - seconds[:, point] for point in (this, chosen))
        if estimate(gain, n).low > 0:
            share = estimate(ratio(np.stack([saved, gain], axis=-1)), n)
            yield row(SD_CHOSEN, chosen, chosen_length, SHARE, share)


def _seeds_versus_sd(run: TaskRun, group: SeedGroup, length: int) -> Iterator[Row]:
    """Compare the mean over the heads of a recipe with plain SD at the same draft length."""
    timed = [sd for sd in sd_of(run.timed(group.session)) if sd.draft_length == length]
    strict = timed or [sd for sd in sd_of(run.settings) if sd.draft_length == length]
    if not strict:
        return
    reached = shared_points(_scored_alike([*group.settings(length), strict[0]])).estimates()
    quality, accepted, seconds = reached.quality, reached.acceptance, reached.seconds
    speed, tokens = reached.tokens_per_second, reached.output_tokens
    facts = group.facts(length, reached) | {
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
        if not np.isnan(values[0]).any() and (timed or metric not in (TIMES, TOKENS)):
            noise = {"noise": run.noise.get(group.session, math.nan)} if metric == TIMES else {}
            yield {**facts, **figure_columns(metric, mean_over_seeds(values, reached.n)), **noise}


def _seeds_gap(
    run: TaskRun, group: SeedGroup, length: int, gain: Gain, front: str
) -> Iterator[Row]:
    """Return the mean distance of the heads of a recipe above a front."""
    settings, points = (
        group.settings(length),
        _front_points(run, group.session, length, gain, front),
    )
    gap = gap_of_seeds(settings, points, gain)
    facts = {**group.facts(length, gap.reached), "against": front, "coarse": gap.coarse}
    yield {**facts, "reference": gap.front, **figure_columns(ABOVE, gap.above)}
    yield {
        **facts,
        "reference": gap.front_measured,
        **figure_columns(ABOVE_MEASURED, gap.above_measured),
    }


def _front_points(run: TaskRun, session: int, length: int, gain: Gain, front: str) -> list[Setting]:
    """Return the points of a front; at equal acceptance those of a draft length."""
    points = front_of(run.sessions[session] if gain == "time" else run.settings, FRONTS[front])
    same = [point for point in points if point.draft_length == length]
    return same if gain == "acceptance" else points


def _gap(
    run: TaskRun, method: MethodSettings, length: int, gain: Gain, front: str
) -> Iterator[Row]:
    points = _front_points(run, method.session, length, gain, front)
    gap = gap_between(method.lengths[length], points, gain)
    facts = method.facts([length], length, gap.reached, 0) | {
        "against": front,
        "between": " to ".join(name or "none" for name in gap.between),
        "step": gap.step,
        "coarse": gap.coarse,
    }
    yield {**facts, "reference": gap.front, **figure_columns(ABOVE, gap.above)}
    yield {
        **facts,
        "reference": gap.front_measured,
        **figure_columns(ABOVE_MEASURED, gap.above_measured),
    }


def _saving(run: TaskRun, method: MethodSettings, lengths: list[int]) -> Iterator[Row]:
    """Compare a method's speed with that of the static front at the method's quality."""
    own, front = [method.lengths[n] for n in lengths], front_of(run.sessions[method.session])
    together = points_with_front(own, front)
    reached, (fastest,) = together.estimates_with_fastest(range(len(own)))
    points = slice(len(own), len(own) + len(front))
    quality, seconds = reached.quality[:, points], reached.seconds
    as_gain = Gains(quality, np.ones_like(quality))
    level = -front_quality(as_gain, -seconds[:, points], reached.quality[:, -1])
    yield {
        **method.facts(lengths, lengths[fastest], reached, -1),
        "against": FRONT,
        "against_quality": min(reached.quality[0, -1], quality[0].max()),
        "reference": level[0],
        **figure_columns(TIMES, estimate(level / seconds[:, -1], reached.n, log=True)),
        "noise": run.noise.get(method.session, math.nan),
    }


def _volume(run: list[Setting], name: str, length: int | None) -> Iterator[Row]:
    """Return a method's hypervolume: acceptance at one draft length, or speed-up over all."""
    gain: Gain = "speedup" if length is None else "acceptance"
    nothing = 1.0 if length is None else 0.0
    last = [setting for setting in run if setting.method == AUTOREGRESSIVE and length is None]
    if length is None and not last:
        raise UsageError(f"{run[0].cell['task']} was not run with autoregressive; run it too.")
    front = front_of(run)
    strict, statics = sum(setting.emits_target for setting in front), len(front)
    others = [s for s in run if s.method == name and name not in STATIC_FAMILY]
    reached = shared_points([*front, *others, *last], range(strict)).estimates()
    within = {"sd": slice(0, strict), "static": slice(0, statics)}
    own = within.get(name, slice(statics, statics + len(others)))

    def volume(points: slice) -> Floats:
        gains = reached.gains(gain).of(points)
        return hypervolume(gains, reached.quality[:, points], (nothing, 0.0))

    metric = f"quality_x_{gain}"
    drafter = next(setting.drafter for setting in run if setting.drafter)
    label = f"{name}, with sd" if name == "static" else name
    facts = {
        "method": name,
        "label": label if drafter == MODEL else f"{label}, {drafter}",
        "points": own.stop - own.start,
        "draft_length": length,
        "drafter": drafter,
    }
    yield {**facts, **figure_columns(metric, estimate(volume(own), reached.n))}
    if strict < statics and not all(setting.emits_target for setting in others):
        static, both = volume(within["static"]), volume(slice(0, own.stop))
        added = estimate(np.maximum(both - static, 0.0), reached.n)  # negative only by rounding
        yield {**facts, "against": FRONT, "reference": static[0], **figure_columns(metric, added)}


def figure_columns(metric: str, found: Interval) -> Row:
    """Return the columns of a figure."""
    value, low, high, n = found
    return {"metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": n}


def _cautions(rows: pd.DataFrame) -> Iterator[str]:
    """Yield notes on coarse fronts and on a missing control."""
    tossed = rows[rows["against"] == COIN].groupby("task")["ci_high"].max()
    placed = rows[(rows["metric"] == ABOVE) & (rows["against"] != COIN)]
    # Between weights below the coin, more weights would not be on the front either.
    tossed_tasks = tossed.index[tossed < 0]
    coarse = placed[placed["coarse"].fillna(False).astype(bool) & placed["step"].notna()]
    coarse = coarse[~coarse["task"].isin(tossed_tasks)]
    coarse = coarse.drop_duplicates(["task", "label", "between"])
    if len(coarse):
        where = ", ".join(
            f"{row.label} on {row.task} ({row.between}, {100 * abs(row.step):.0f} points)"
            for row in coarse.itertuples()
        )
        yield (
            "the front is interpolated between weights whose qualities are far apart; measure more "
            f"weights for {where}"
        )
    if not placed.empty and CONTROL not in set(placed["against"]):
        yield (
            "the run has no control for sharpening the target: add one to the same run with "
            "`--method cooled --set both_temperature=0.4,0.6,0.8`"
        )
