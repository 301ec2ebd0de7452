"""The verdict on each method: one sentence about speed, quality and the static front.

A difference is named only if its 95 % interval excludes no difference. Below
``intervals.FEWEST`` prompts there is no interval and so no verdict.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis import compare as c
from specbench.analysis.intervals import FEWEST
from specbench.analysis.pareto import COARSE
from specbench.analysis.summary import shown_name, shown_scale
from specbench.errors import UsageError
from specbench.methods.drafters import MODEL
from specbench.table import with_interval

FASTER, SLOWER, HIGHER, LOWER = "faster", "slower", "higher", "lower"
#: The interval includes no difference; it reaches into the noise of sd against itself; there are
#: too few prompts; it was not measured.
UNSHOWN, NOISE, FEW, MISSING = "no difference shown", "within noise", "too few prompts", ""

_RUN = ["run_id", "pair", "temperature", "engine", "batch_size", "task"]
#: ``speed`` and ``quality`` are relative to ``sd``, ``front`` is quality relative to the randomised
#: static front at equal acceptance; each is one of the words above.
VERDICTS = (
    *(*_RUN, "method", "label", "draft_length", "n"),
    *("speed", "quality", "front", "sentence"),
)


class _Part(NamedTuple):
    """What one figure shows, and how to say it."""

    shown: str
    text: str


def verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on a comparison that includes equal acceptance: columns ``VERDICTS``.

    There is one row per task, method and draft length; several heads of one recipe are one method,
    the mean over their seeds. If ``sd`` also has several draft lengths,
    there is one row per task and method: both at their fastest, chosen as in ``compare``.
    """
    found = []
    single_seeds = rows["seeds"] == 1
    judged = rows[rows["at"].isin([c.OWN, "acceptance"]) & ~single_seeds]
    for key, run in judged.groupby(_RUN, sort=False, dropna=False):
        own = run[run["at"] == c.OWN]
        for label, group in own.groupby("label", sort=False):
            chosen = group[(group["points"] > 1) & (group["against"] == c.SD_CHOSEN)]
            lengths = chosen if len(chosen) else group
            for length in lengths["draft_length"].unique():
                alike = run[(run["label"] == label) & (run["draft_length"] == length)]
                speed = chosen if len(chosen) else alike[alike["against"] == c.SD]
                verdict = _verdict(alike[alike["points"] == 1], speed)
                found.append(dict(zip(_RUN, key, strict=True)) | verdict)
    table = pd.DataFrame(found, columns=list(VERDICTS))
    several = table.groupby([*_RUN, "label"], dropna=False)["draft_length"].transform("nunique") > 1
    names = table["label"] + (", N = " + table["draft_length"].map("{:.0f}".format)).where(
        several, ""
    )
    return table.assign(sentence=names + ": " + table["sentence"])


def verdicts_of(samples: pd.DataFrame, methods: Collection[str] | None = None) -> pd.DataFrame:
    """Return the verdicts on all or some methods of runs; empty without ``sd`` to compare with."""
    names = None if methods is None else {*methods} - {"sd"}
    try:
        return verdicts(c.compare(samples, ["acceptance"], names).rows)
    except UsageError:
        return pd.DataFrame(columns=list(VERDICTS))


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = table.to_dict("records")
    return records


def by_task(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the sentences of verdicts under a heading for each task of each run."""
    several = [name for name in ("run_id", "engine", "batch_size") if table[name].nunique() > 1]
    found: dict[str, list[str]] = {}
    for row in _records(table):
        parts = [f"{row['task']} on {row['pair']}", f"T = {row['temperature']:g}"]
        parts += [f"batch {row[name]}" if name == "batch_size" else row[name] for name in several]
        found.setdefault(", ".join([*parts, f"n = {row['n']}"]), []).append(row["sentence"])
    return found


def _verdict(alike: pd.DataFrame, speed: pd.DataFrame) -> dict[str, Any]:
    """Return the verdict on a method at one draft length.

    Args:
        alike: All figures of the method at that length.
        speed: Those that compare its time with that of ``sd``, at the same or the fastest length.
    """
    known = {metric: row for row in _records(alike) if (metric := _metric(row))}
    times = next((row for row in _records(speed) if row["metric"] == c.TIMES), None)
    first = times or next(iter(known.values()))
    unit, scale = (show(str(first["quality_metric"])) for show in (shown_name, shown_scale))
    n = int(first["n"])
    verdict = {name: first[name] for name in ("method", "label", "draft_length", "n")}
    if n < FEWEST:
        few = f"too few prompts for a verdict (n = {n}; at least {FEWEST} are needed)"
        return verdict | dict.fromkeys(("speed", "quality", "front"), FEW) | {"sentence": few}
    faster = _speed(times)
    better = _quality(known.get(c.QUALITY_LESS), str(unit), float(scale))
    above = _front(known, float(scale))
    if {faster.shown, better.shown} <= {UNSHOWN, NOISE, MISSING}:
        figures = ", ".join(filter(None, [faster.text, better.text]))
        beside = f"no difference from {_baseline(first)} shown at n = {n}: {figures}"
    else:
        ending = {UNSHOWN: " (no difference shown)", NOISE: " (not told from noise)"}
        told = [part.text + ending.get(part.shown, "") for part in (faster, better) if part.text]
        beside = ", ".join(told)
    return verdict | {
        "speed": faster.shown,
        "quality": better.shown,
        "front": above.shown,
        "sentence": "; ".join(filter(None, [beside, above.text])),
    }


def _metric(row: dict[str, Any]) -> str:
    """Return the metric of a row against ``sd`` or the static front; others are not needed."""
    return str(row["metric"]) if row["against"] in (c.SD, c.FRONT) else ""


def _baseline(row: dict[str, Any]) -> str:
    """Name the ``sd`` that a method is compared with: that of its own drafter."""
    other = row["method"] != "sd" and row["drafter"] != MODEL
    return f"sd {row['drafter']}" if other else "sd"


def _sign(row: dict[str, Any], least: float, most: float, low: str, high: str) -> str:
    """Return which side of a range the interval lies on: ``low``, ``high`` or neither."""
    return high if row["ci_low"] > most else low if row["ci_high"] < least else UNSHOWN


def _speed(row: dict[str, Any] | None) -> _Part:
    if row is None:
        return _Part(MISSING, "speed not comparable with sd")
    shown, noise = _sign(row, 1, 1, SLOWER, FASTER), row["noise"]
    if (
        noise == noise
        and shown != UNSHOWN
        and _sign(row, 1 / noise, noise, SLOWER, FASTER) != shown
    ):
        shown = NOISE
    times = with_interval(row["value"], row["ci_low"], row["ci_high"], ".2f")
    against = f" as {_baseline(row)}"
    if row["against"] == c.SD_CHOSEN:
        lengths = (row["draft_length"], row["against_draft_length"])
        against += ", each at its fastest N ({:.0f} and {:.0f})".format(*lengths)
    slower = " (slower)" if shown == SLOWER else ""
    if noise == noise:
        against += f" (noise {1 / noise:.2f} to {noise:.2f})"
    return _Part(shown, f"{times} times as fast per sample{against}{slower}")


def _quality(row: dict[str, Any] | None, unit: str, scale: float) -> _Part:
    if row is None:
        return _Part(MISSING, "quality not measured")
    shown = _sign(row, 0, 0, LOWER, HIGHER)
    if shown == UNSHOWN:
        return _Part(shown, f"{unit} {_difference(row, scale)} points")
    return _Part(shown, f"{unit} {_size(row, scale)} points {shown}")


def _front(known: dict[str, dict[str, Any]], scale: float) -> _Part:
    """Compare with the static front; with a coarse one also at its nearest measured point."""
    if (row := known.get(c.ABOVE)) is None:
        return _Part(MISSING, "")
    shown = _sign(row, 0, 0, LOWER, HIGHER)
    front = "the randomised static front"
    if shown == UNSHOWN:
        return _Part(shown, f"not shown to differ from {front} ({_difference(row, scale)})")
    side = "above" if shown == HIGHER else "below"
    text = f"{_size(row, scale)} points {side} {front}"
    coarse = abs(row["step"]) > COARSE
    if shown == HIGHER and coarse and _sign(known[c.ABOVE_MEASURED], 0, 0, LOWER, HIGHER) != HIGHER:
        return _Part(UNSHOWN, f"{text}, but not above its nearest measured weight")
    return _Part(shown, text)


def _difference(row: dict[str, Any], scale: float) -> str:
    value, low, high = (scale * row[name] for name in ("value", "ci_low", "ci_high"))
    return with_interval(value, low, high, "+.1f")


def _size(row: dict[str, Any], scale: float) -> str:
    """Return a difference with its interval, without signs."""
    value, low, high = (abs(scale * row[name]) for name in ("value", "ci_low", "ci_high"))
    return with_interval(value, min(low, high), max(low, high), ".1f")
