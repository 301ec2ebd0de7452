"""Sentences and words on one method: what its figures show, and at which price.

Relative to ``sd``, the sentence begins with the speed relative to no speculation. Speed and quality
relative to SD follow, then the quality relative to the static front at equal acceptance and at
equal time, and whatever changes the meaning of these figures: prompts that are missing, texts of
another length, a coarse front, a lower temperature that gains as much. A difference is named only
if its 95 % interval excludes zero. Below ``intervals.FEWEST`` prompts there is no interval and so
no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis import estimates
from specbench.analysis.comparison import ALONE, CONTROL, FRONT, OWN, SD, SD_CHOSEN, SPEEDS
from specbench.analysis.estimates import ABOVE, ABOVE_MEASURED, LENGTH, QUALITY_LESS, SPEED, TIMES
from specbench.analysis.intervals import FEWEST
from specbench.analysis.output.shown import shown
from specbench.runs.frames import rows_of
from specbench.runs.labels import DEFAULT_DRAFTER
from specbench.tasks.metrics import AGREEMENT, shown_metric

FASTER, SLOWER, HIGHER, LOWER = "faster", "slower", "higher", "lower"
#: The interval includes no difference; it reaches into the noise of sd against itself; there are
#: too few prompts; it was not measured.
UNSHOWN, NOISE, FEW, MISSING = "no difference shown", "within noise", "too few prompts", ""
WITHIN, BEYOND = "within the margin", "beyond the margin"

#: What a verdict says, each in one of the words above. ``speculation`` is the speed relative to no
#: speculation, ``speed`` and ``quality`` are relative to ``sd``. ``front`` is quality relative to
#: the randomised static front at equal acceptance, ``front_at_time`` at equal time, ``control``
#: relative to the sharpened front at equal acceptance.
OUTCOMES = ("speculation", "speed", "quality", "front", "front_at_time", "control")
CONCURRENCY = "concurrency"  # the name of a server's load in the column ``settings``
NOTICED = 0.02  # difference between two ratios of speed
_COOLER = "a lower temperature gains {gained} there, and the method {difference} more"
#: What each part of a sentence says, by its outcome.
_PHRASES = {
    "speculation": {
        FASTER: "faster than no speculation ({times})",
        SLOWER: "slower than no speculation ({times})",
        UNSHOWN: "not shown to be faster or slower than no speculation ({times})",
        NOISE: "within the timing noise of no speculation ({times})",
    },
    "speed": dict.fromkeys((FASTER, UNSHOWN, NOISE), "{times}") | {SLOWER: "{times} (slower)"},
    "quality": {
        HIGHER: "{unit} {size} points higher",
        LOWER: "{unit} {size} points lower",
        UNSHOWN: "{unit} {difference} points",
    },
    "front": {
        HIGHER: "{size} points above {front}",
        LOWER: "{size} points below {front}",
        UNSHOWN: "not shown to differ from {front} ({difference})",
    },
    "control": {HIGHER: _COOLER, LOWER: _COOLER, UNSHOWN: f"{_COOLER} (no difference shown)"},
}

Row = dict[Any, Any]  # a setting with its figures, see ``estimates.pivot``


class Clause(NamedTuple):
    """What one figure shows, and how to say it."""

    outcome: str
    text: str


UNKNOWN = Clause(MISSING, "")


def word(row: Row) -> str:
    """Return in a few words what a method changes relative to ``sd`` at the same N."""
    if row["against"] != SD:
        return ""
    if row["n"] < FEWEST:
        return FEW
    ratio = speed_of(row)
    speed, outcome = sign_of_speed(row, ratio), sign(row, QUALITY_LESS)
    if outcome == UNSHOWN:
        return speed_words(speed, UNSHOWN if is_known(row, QUALITY_LESS) else MISSING)
    points = abs(shown_metric(row["quality_metric"])[1] * row[QUALITY_LESS])
    pace = f" at {row[ratio]:.2f} times" if speed in (FASTER, SLOWER) else "; speed open"
    pace = pace if is_known(row, ratio) else ""
    return f"{points:.1f} points {'worse' if outcome == LOWER else 'better'}{pace}"


def speed_words(speed: str, quality: str) -> str:
    """Return what is shown of the speed alone, and why nothing is of quality."""
    pace = speed if speed in (FASTER, SLOWER) else "open"
    if quality == MISSING:
        return f"{pace}; speed only"
    return pace if pace == "open" else f"{pace}; quality open"


def verdict(alike: pd.DataFrame, speed: pd.DataFrame) -> Row:
    """Return the verdict on a method at one draft length, relative to ``sd`` and its front.

    Args:
        alike: All figures of the method at that length.
        speed: Those that compare its time with others' times, at the same or the fastest length.
    """
    rows = {(row["against"], row["at"]): row for row in estimates.pivot(alike, "against", "at")}
    ratio = speed_of(rows_of(alike.head(1))[0])
    speeds = estimates.pivot(speed[speed["metric"].isin(SPEEDS)], "against")
    times = {row["against"]: row for row in speeds if ratio in row}
    alone, beside_sd = times.get(ALONE), times.get(SD_CHOSEN) or times.get(SD)
    first = beside_sd or alone or next(iter(rows.values()))
    n, missing = int(first["n"]), int(first["missing"])
    timeless = first["batch_size"] > 1 and not first["blocks"] >= FEWEST
    facts = {name: first[name] for name in ("method", "label", "draft_length", "n", "missing")}
    if n < FEWEST:
        few = f"too few prompts for a verdict (n = {n}; at least {FEWEST} are needed)"
        return facts | dict.fromkeys(OUTCOMES, FEW) | {"sentence": few}
    at_same_length = rows.get((SD, OWN), {})
    has_sd = any(against in (SD, SD_CHOSEN) for against, _ in rows)
    parts = {
        "speculation": _speculation(alone, ratio),
        "speed": _speed(beside_sd, ratio) if has_sd and not timeless else UNKNOWN,
        "quality": _quality(at_same_length, timeless) if has_sd else UNKNOWN,
        "front": _front(rows.get((FRONT, "acceptance"))),
        "front_at_time": _front(rows.get((FRONT, "time"))),
        "control": _control(rows.get((FRONT, "acceptance")), rows.get((CONTROL, "acceptance"))),
    }
    lost = f"n = {n} of {n + missing}: {missing} prompts have no result of this method"
    sentence = [
        lost if missing else "",
        parts["speculation"].text,
        _beside_sd(parts["speed"], parts["quality"], first),
        _length(at_same_length),
        ", ".join(filter(None, [parts["front"].text, parts["front_at_time"].text])),
        parts["control"].text,
    ]
    outcomes = {name: part.outcome for name, part in parts.items()}
    return facts | outcomes | {"sentence": "; ".join(filter(None, sentence))}


def speed_of(row: Row) -> str:
    """Return the ratio that is the speed of a setting: of texts in batches, that of tokens/s."""
    return SPEED if row["batch_size"] > 1 else TIMES


def is_known(row: Row, metric: str) -> bool:
    """Return whether a figure has an interval."""
    return not math.isnan(row.get(f"{metric}_low", math.nan))


def sign(row: Row, metric: str, least: float = 0, most: float = 0) -> str:
    """Return which side of a range the interval lies on: ``LOWER``, ``HIGHER`` or neither."""
    if row.get(f"{metric}_low", math.nan) > most:
        return HIGHER
    return LOWER if row.get(f"{metric}_high", math.nan) < least else UNSHOWN


def sign_of_speed(row: Row, metric: str) -> str:
    """Return whether a speed-up is a difference that exceeds the noise of ``sd``."""
    outcome, noise = sign(row, metric, 1, 1), row["noise"]
    if noise == noise and outcome != sign(row, metric, 1 / noise, noise):
        return NOISE
    return {HIGHER: FASTER, LOWER: SLOWER}.get(outcome, outcome)


def resolution(widths: Iterable[float], factors: Iterable[float]) -> str:
    """Say how precisely prompts tell quality and speed, by the widest intervals; NaN is ignored.

    Args:
        widths: Points from the lower to the upper end of differences in quality.
        factors: Upper ends of ratios of speed over the lower ends.
    """
    points = max((width / 2 for width in widths if width == width), default=math.nan)
    spread = max(
        (math.sqrt(factor) - 1 for factor in factors if factor == factor), default=math.nan
    )
    parts = [f"quality to ±{points:.1f} points"] if points == points else []
    parts += [f"speed to ±{100 * spread:.0f} %"] if spread == spread else []
    return " and ".join(parts)


def noise_range(noise: float) -> str:
    """Return the ratios of times that noise explains; empty if the noise is unknown."""
    return f"{1 / noise:.2f} to {noise:.2f}" if noise == noise else ""


def _times(row: Row, metric: str) -> str:
    unit = "times as many tokens/s" if metric == SPEED else "times as fast per sample"
    return f"{shown(metric).interval(row)} {unit}"


def _clause(part: str, outcome: str, **words: str) -> Clause:
    """Return what a part of the sentence says for an outcome."""
    return Clause(outcome, _PHRASES[part][outcome].format(**words))


def _speculation(row: Row | None, ratio: str) -> Clause:
    """Compare with no speculation, by samples and, where that is another number, by tokens."""
    if row is None or SPEED not in row:
        return UNKNOWN
    tokens, speed = row[SPEED], row[ratio]
    longer = (
        f" and {tokens:.2f} times as many tokens/s, since its texts are {tokens / speed:.2f} times "
        "as long"
    )
    times = _times(row, ratio) + (longer if abs(tokens - speed) >= NOTICED else "")
    return _clause("speculation", sign_of_speed(row, ratio), times=times)


def _speed(row: Row | None, ratio: str) -> Clause:
    """Compare with ``sd`` at the same or at each method's fastest draft length."""
    if row is None:
        return Clause(MISSING, "speed not comparable with sd")
    times = f"{_times(row, ratio)} as {_baseline(row)}"
    if row["against"] == SD_CHOSEN:
        lengths = f"{row['draft_length']:.0f} and {row['against_draft_length']:.0f}"
        times += f", each at its fastest N ({lengths})"
    if noise := noise_range(row["noise"]):
        times += f" (noise {noise})"
    return _clause("speed", sign_of_speed(row, ratio), times=times)


def _baseline(row: Row) -> str:
    """Name the ``sd`` that a method is compared with: that of its own drafter."""
    other = row["method"] != "sd" and row["drafter"] != DEFAULT_DRAFTER
    return f"sd {row['drafter']}" if other else "sd"


def _quality(row: Row, timeless: bool) -> Clause:
    if QUALITY_LESS not in row:
        return Clause(MISSING, f"{'' if timeless else 'speed only, '}quality was not measured")
    words = _words(row, QUALITY_LESS) | {"unit": shown_metric(row["quality_metric"])[0]}
    return _clause("quality", sign(row, QUALITY_LESS), **words)


def _beside_sd(speed: Clause, quality: Clause, first: Row) -> str:
    """Say speed and quality relative to ``sd``."""
    figures = [part for part in (speed, quality) if part.text]
    if figures and {part.outcome for part in figures} <= {UNSHOWN, NOISE}:
        texts = ", ".join(part.text for part in figures)
        return f"no difference from {_baseline(first)} shown at n = {first['n']}: {texts}"
    ending = {UNSHOWN: " (no difference shown)", NOISE: " (within the timing noise)"}
    return ", ".join(part.text + ending.get(part.outcome, "") for part in figures)


def _length(row: Row) -> str:
    """Say how much longer texts are than those of ``sd``, if that is shown in two decimals."""
    if LENGTH not in row or (
        round(row[f"{LENGTH}_low"], 2) <= 1 <= round(row[f"{LENGTH}_high"], 2)
    ):
        return ""
    times = shown(LENGTH).interval(row)
    return f"its texts are {times} times as long as those of {_baseline(row)}"


def front_ends_before(row: Row) -> bool:
    """Return whether no measured weight gains as much as a method, though the draft alone may."""
    return math.isnan(row[ABOVE])


def front_outcome(row: Row) -> str:
    """Return whether a method lies above or below the static front; above a coarse one clearly."""
    outcome = sign(row, ABOVE)
    clear = not row["coarse"] or sign(row, ABOVE_MEASURED) == HIGHER
    return UNSHOWN if outcome == HIGHER and not clear else outcome


def _front(row: Row | None) -> Clause:
    """Compare with the static front; with a coarse one also at its nearest point."""
    if row is None:
        return UNKNOWN
    if front_ends_before(row):
        reach = "accepts as much" if row["at"] == "acceptance" else "is as fast"
        return Clause(MISSING, f"no measured static weight {reach}")
    front = "the randomised static front" if row["at"] == "acceptance" else "it"
    words = _words(row, ABOVE) | {"front": f"{front} at equal {row['at']}"}
    outcome, side = front_outcome(row), sign(row, ABOVE)
    clause = _clause("front", side, **words)
    if side == outcome:
        return clause
    nearest = _words(row, ABOVE_MEASURED)["difference"]
    return Clause(outcome, f"{clause.text}, but not above it at the nearest weight ({nearest})")


def _control(front: Row | None, cooler: Row | None) -> Clause:
    """Say what a lower temperature gains where a method is above the static front."""
    if front is None or not front[f"{ABOVE}_low"] > 0:
        return UNKNOWN
    if cooler is None:
        sampled = front["quality_metric"] == AGREEMENT and front["temperature"] > 0
        unknown = "a lower temperature may gain as much, which this run did not measure"
        return Clause(MISSING, unknown if sampled else "")
    gained = shown_metric(front["quality_metric"])[1] * (front[ABOVE] - cooler[ABOVE])
    words = _words(cooler, ABOVE) | {"gained": f"{gained:+.1f}"}
    return _clause("control", sign(cooler, ABOVE), **words)


def _words(row: Row, metric: str) -> dict[str, str]:
    """Return a difference with its interval, with signs, and its size, without."""
    figure = shown(metric, row["quality_metric"])
    low, high = sorted((abs(row[f"{metric}_low"]), abs(row[f"{metric}_high"])))
    size = figure._replace(form=".1f").estimate(abs(row[metric]), low, high)
    return {"difference": figure.interval(row), "size": size}
