"""Methods against the static front and against plain SD: at equal acceptance, time and quality.

Everything is paired by prompt and within one run, since times of two runs are not comparable to
the per cent. What acceptance a weight buys depends on the draft length, so at equal acceptance a
method meets the static points of its own draft length; at equal time or quality it meets those of
every draft length in the run, since a user is free to choose one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from specbench.analysis.frames import PARAMETERS
from specbench.analysis.intervals import Floats, Interval, estimate, ratio
from specbench.analysis.pareto import (
    STATIC_FAMILY,
    front_quality,
    gap_above_front,
    hypervolume,
    static_settings,
)
from specbench.analysis.points import Gain, shared_points
from specbench.errors import UsageError
from specbench.methods.labels import method_labels

#: What is held equal; the hypervolume sums up a front instead of reading it at one point.
At = Literal["acceptance", "time", "quality", "hypervolume"]
ATS: tuple[At, ...] = get_args(At)
#: What stands in the place of ``quality`` where it is not equal: beside plain SD.
OWN = "own quality"

FRONT, SD, SD_CHOSEN = "static front", "sd", "sd at chosen N"
ABOVE, TIMES, SHARE = "quality_above", "times_as_fast", "share_of_gain"

_TASK = ["run_id", "pair", "temperature", "engine", "batch_size", "task", "quality_metric"]
#: One row per figure: ``value`` with its interval over ``n`` prompts.
#:
#: ``points`` is how many settings a row chose from or joined; ``draft_length`` the one or the
#: chosen one, blank for several. ``quality``, ``acceptance`` and ``seconds`` (per sample) are the
#: method's. ``reference`` is what it is compared with: a quality, a volume, or seconds per sample
#: at ``against_quality``, which for the front is the method's as far as the front reaches.
COMPARISON = (
    *(*_TASK, "at", "method", "label", "points", "draft_length"),
    *("quality", "acceptance", "seconds"),
    *("against", "against_draft_length", "against_quality", "reference"),
    *("metric", "value", "ci_low", "ci_high", "n"),
)

Row = dict[str, Any]


class Compared(NamedTuple):
    """A comparison, columns ``COMPARISON``, and why parts of it are missing."""

    rows: pd.DataFrame
    missing: list[str]


class _Setting(NamedTuple):
    """A method with its parameters: its samples by draft length."""

    method: str
    label: str
    lengths: dict[int, pd.DataFrame]


def compare(
    samples: pd.DataFrame, ats: Sequence[At] = ATS, methods: Sequence[str] | None = None
) -> Compared:
    """Place methods against the static front and against plain SD, with 95 % intervals.

    At equal acceptance and time: ``quality_above``, the method's quality minus the front's at its
    own acceptance rate, or seconds per sample (prefill and decoding).

    At equal quality: ``times_as_fast``, seconds per sample of the static front at the method's own
    quality over the method's. Beside it, ``at`` is ``own quality``: the same of plain SD, whose
    quality is another, at the method's draft length and at one chosen. ``share_of_gain`` is how
    much of the seconds that the method saves over plain SD at its draft length plain SD saves by
    the choice of another; there is none where it is not certain that the method saves any. A
    method run with several draft lengths has a further row at a chosen one. Chosen is the fastest,
    on one half of the prompts, and measured on the other, in each resample
    (``Points.reached_with_fastest``): chosen and measured on the same it would flatter.

    Hypervolume: the area that a method's settings dominate, in quality times acceptance above
    (0, 0) and, over all draft lengths, in quality times speed-up above a quality of 0 and the
    speed-up 1 of ``autoregressive``. These references are the same for every run. ``static``
    includes ``sd``. The area grows with the number of settings, so ``points`` stands beside it,
    and a further row has what the method adds to the area of the static family. Both take the
    best of noisy points, so they come out a little large: what lies on the front adds a little.

    Args:
        samples: Samples of one run or several; each run is looked at by itself.
        ats: Which of these.
        methods: Those to place; by default all that draft and are not static.

    Raises:
        UsageError: The samples allow none of it.
    """
    rows: list[Row] = []
    missing: dict[str, None] = {}
    for key, run in samples.groupby(_TASK, sort=False, dropna=False):
        shared = dict(zip(_TASK, key, strict=True))
        for at in ats:
            for part in _PARTS[at](run, methods):
                try:
                    rows += [{**shared, "at": at, **row} for row in part()]
                except UsageError as error:
                    missing[str(error)] = None
    if not rows:
        reason = next(iter(missing), "the runs hold none of these methods: name others")
        raise UsageError(reason)
    return Compared(pd.DataFrame(rows, columns=list(COMPARISON)), list(missing))


Part = Callable[[], Iterator[Row]]


def _gaps(run: pd.DataFrame, methods: Sequence[str] | None, gain: Gain) -> Iterator[Part]:
    for setting in _settings(run, methods):
        for length in setting.lengths:
            yield partial(_gap, run, setting, length, gain)


def _gap(run: pd.DataFrame, setting: _Setting, length: int, gain: Gain) -> Iterator[Row]:
    family = run[run["method"].isin(STATIC_FAMILY)]
    if gain == "acceptance":
        family = family[family["draft_length"] == length]
    gap = gap_above_front(
        pd.concat([setting.lengths[length], family]),
        task=run["task"].iloc[0],
        method=setting.method,
        gain=gain,
    )
    yield {
        "method": setting.method,
        "label": setting.label,
        "points": 1,
        "draft_length": length,
        "quality": gap.quality,
        "acceptance": gap.acceptance,
        "seconds": gap.seconds,
        "against": FRONT,
        "reference": gap.front,
        **_figure(ABOVE, Interval(gap.value, gap.low, gap.high, gap.n)),
    }


def _savings(run: pd.DataFrame, methods: Sequence[str] | None) -> Iterator[Part]:
    for setting in _settings(run, methods):
        for length in setting.lengths:
            yield partial(_saving, run, setting, [length])
        if len(setting.lengths) > 1:
            yield partial(_saving, run, setting, list(setting.lengths))


def _saving(run: pd.DataFrame, setting: _Setting, lengths: list[int]) -> Iterator[Row]:
    """How many times as fast a method is at one draft length, or at one chosen of several."""
    strict, relaxed = static_settings(run)
    if not strict:
        raise UsageError(f"{run['task'].iloc[0]} was not run with sd; run it too.")
    mine = [setting.lengths[length] for length in lengths]
    sd = range(len(mine), len(mine) + len(strict))
    points = shared_points([*mine, *strict, *relaxed], sd)
    reached, fastest = points.reached_with_fastest(range(len(mine)), sd)
    seconds, own, best = reached.seconds, reached.seconds[:, -2], reached.seconds[:, -1]
    sd_length = [int(group["draft_length"].iloc[0]) for group in strict]
    facts = {
        "method": setting.method,
        "label": setting.label,
        "points": len(lengths),
        "draft_length": lengths[fastest[0]],
        "quality": reached.quality[0, -2],
        "acceptance": reached.acceptance[0, -2],
        "seconds": own[0],
    }

    def times(against: str, length: int | None, theirs: Floats, level: float) -> Row:
        return {
            **facts,
            "against": against,
            "against_draft_length": length,
            "against_quality": level,
            "reference": theirs[0],
            **_figure(TIMES, estimate(theirs / own, reached.n)),
        }

    quality, level = reached.quality, reached.quality[0, sd[0]]
    if relaxed:
        front = slice(sd.start, sd.stop + len(relaxed))
        theirs = -front_quality(quality[:, front], -seconds[:, front], quality[:, -2])
        yield times(FRONT, None, theirs, min(quality[0, -2], quality[0, front].max()))
    same = sd_length.index(lengths[0]) if len(lengths) == 1 and lengths[0] in sd_length else None
    if same is not None:
        yield {"at": OWN, **times(SD, lengths[0], seconds[:, sd[same]], level)}
    if len(strict) == 1:
        return
    chosen = sd_length[fastest[1] - sd.start]
    row = {"at": OWN, **times(SD_CHOSEN, chosen, best, level)}
    yield row
    if same is not None and chosen != lengths[0]:
        gain = seconds[:, sd[same]] - own
        if estimate(gain, reached.n).low > 0:
            share = ratio(np.stack([seconds[:, sd[same]] - best, gain], axis=-1))
            yield {**row, **_figure(SHARE, estimate(share, reached.n))}


def _volumes(run: pd.DataFrame, methods: Sequence[str] | None) -> Iterator[Part]:
    present = run.loc[run["draft_length"] > 0, "method"].unique()
    chosen = [m for m in present if methods is None or m in {*methods, *STATIC_FAMILY}]
    for method in chosen:
        for length, rows in run[run["draft_length"] > 0].groupby("draft_length"):
            if (rows["method"] == method).any():
                yield partial(_volume, rows, method, length)
        yield partial(_volume, run, method, None)


def _volume(run: pd.DataFrame, method: str, length: int | None) -> Iterator[Row]:
    """The volume of a method in acceptance at one draft length, or in speed-up over all."""
    strict, relaxed = static_settings(run)
    other = [] if method in STATIC_FAMILY else _settings(run, [method])
    mine = [rows for setting in other for rows in setting.lengths.values()]
    baseline = run[run["method"] == "autoregressive"]
    if length is None and baseline.empty:
        raise UsageError(f"{run['task'].iloc[0]} was not run with autoregressive; run it too.")
    last = [baseline] if length is None else []
    reached = shared_points([*strict, *relaxed, *mine, *last], range(len(strict))).reached()
    statics = len(strict) + len(relaxed)
    within = {"sd": slice(0, len(strict)), "static": slice(0, statics)}
    own = within.get(method, slice(statics, statics + len(mine)))
    gain: Gain = "speedup" if length is None else "acceptance"
    gains, nothing = reached.gain(gain), 1.0 if length is None else 0.0

    def volume(points: slice) -> Floats:
        return hypervolume(gains[:, points], reached.quality[:, points], (nothing, 0.0))

    metric = f"quality_x_{gain}"
    facts = {
        "method": method,
        "label": f"{method}, with sd" if method == "static" else method,
        "points": own.stop - own.start,
        "draft_length": length,
    }
    yield {**facts, **_figure(metric, estimate(volume(own), reached.n))}
    if mine and relaxed:
        theirs, both = volume(within["static"]), volume(slice(0, own.stop))
        added = estimate(np.maximum(both - theirs, 0.0), reached.n)  # no less, but for rounding
        yield {**facts, "against": FRONT, "reference": theirs[0], **_figure(metric, added)}


_PARTS: dict[At, Callable[[pd.DataFrame, Sequence[str] | None], Iterator[Part]]] = {
    "acceptance": partial(_gaps, gain="acceptance"),
    "time": partial(_gaps, gain="time"),
    "quality": _savings,
    "hypervolume": _volumes,
}


def _settings(run: pd.DataFrame, methods: Sequence[str] | None) -> list[_Setting]:
    """The settings of some methods, by default of those that draft and are not static."""
    drafting = run[run["draft_length"] > 0]
    known = drafting.drop_duplicates(["method", *PARAMETERS])
    labels = method_labels(known.to_dict("records"))
    groups = drafting.groupby(["method", *PARAMETERS], sort=False, dropna=False)
    return [
        _Setting(method, label, {int(n): rows for n, rows in group.groupby("draft_length")})
        for label, ((method, *_), group) in zip(labels, groups, strict=True)
        if (method not in STATIC_FAMILY if methods is None else method in methods)
    ]


def _figure(metric: str, found: Interval) -> Row:
    value, low, high, n = found
    return {"metric": metric, "value": value, "ci_low": low, "ci_high": high, "n": n}
