"""Sentences and words on one method: what its figures show, and at which price.

Relative to ``sd``, the sentence begins with the speed relative to no speculation. Speed and quality
relative to SD follow, then the quality relative to the static front at equal acceptance and at
equal time, and whatever changes the meaning of these figures: prompts that are missing, texts of
another length, a coarse front, a lower temperature that gains as much. With a margin, relative to
any other method, it says speed and quality, and what is missing. A difference is named only if its
95 % interval excludes zero. Below ``intervals.FEWEST`` prompts there is no interval and so
no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis import comparison as c
from specbench.analysis import estimates as e
from specbench.analysis.intervals import FEWEST, unseen_share
from specbench.analysis.output.shown import ENDS, shown
from specbench.analysis.output.table import percent, with_interval
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
_FRONT = "the randomised static front"
NOTICED = 0.02  # difference between two ratios of speed
#: The outcomes of quality beside a margin, of which the first that holds is said.
_MARGIN = (
    (MISSING, "quality was not measured"),
    (UNSHOWN, "{unit} 0 of all answers, so no loss can show: check the prompts"),
    (BEYOND, "{points}: lossy beyond the margin of {margin}"),
    (UNSHOWN, "{points}: {evidence}not shown to be within {margin}"),
    (
        UNSHOWN,
        "{points}: {evidence}not shown to be within {margin}; about {more:.0f} more prompts would "
        "decide (the scores of {differ} differ)",
    ),
    (
        UNSHOWN,
        "{points}: {evidence}not shown to be within {margin}, since {n:.0f} prompts cannot exclude "
        "{unseen} of failed answers; about {more:.0f} more would decide",
    ),
    (UNSHOWN, "{points}: {evidence}not within {margin} if the missing answers are wrong"),
    (WITHIN, "{points}: {evidence}within {margin}"),
)

Row = dict[Any, Any]  # a setting with its figures, see ``estimates.pivot``


class Clause(NamedTuple):
    """What one figure shows, and how to say it."""

    outcome: str
    text: str


UNKNOWN = Clause(MISSING, "")


def word(row: Row) -> str:
    """Return in a few words what a method changes relative to ``sd`` at the same N."""
    if row["against"] != c.SD:
        return ""
    if row["n"] < FEWEST:
        return FEW
    ratio = speed_of(row)
    speed, outcome = sign_of_speed(row, ratio), sign(row, e.QUALITY_LESS)
    if outcome == UNSHOWN:
        return _pace(speed, UNSHOWN if _is_known(row, e.QUALITY_LESS) else MISSING)
    points = abs(shown_metric(row["quality_metric"])[1] * row[e.QUALITY_LESS])
    pace = f" at {row[ratio]:.2f} times" if speed in (FASTER, SLOWER) else "; speed open"
    pace = pace if _is_known(row, ratio) else ""
    return f"{points:.1f} points {'worse' if outcome == LOWER else 'better'}{pace}"


def _pace(speed: str, quality: str) -> str:
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
    rows = {(row["against"], row["at"]): row for row in e.pivot(alike, "against", "at")}
    ratio = speed_of(rows_of(alike.head(1))[0])
    speeds = e.pivot(speed[speed["metric"].isin(c.SPEEDS)], "against")
    times = {row["against"]: row for row in speeds if ratio in row}
    alone, beside_sd = times.get(c.ALONE), times.get(c.SD_CHOSEN) or times.get(c.SD)
    first = beside_sd or alone or next(iter(rows.values()))
    n, missing = int(first["n"]), int(first["missing"])
    timeless = first["batch_size"] > 1 and not first["blocks"] >= FEWEST
    facts = {name: first[name] for name in ("method", "label", "draft_length", "n", "missing")}
    if n < FEWEST:
        few = f"too few prompts for a verdict (n = {n}; at least {FEWEST} are needed)"
        return facts | dict.fromkeys(OUTCOMES, FEW) | {"sentence": few}
    at_same_length = rows.get((c.SD, c.OWN), {})
    has_sd = any(against in (c.SD, c.SD_CHOSEN) for against, _ in rows)
    parts = {
        "speculation": _speculation(alone, ratio),
        "speed": _speed(beside_sd, ratio) if has_sd and not timeless else UNKNOWN,
        "quality": _quality(at_same_length, timeless) if has_sd else UNKNOWN,
        "front": _front(rows.get((c.FRONT, "acceptance"))),
        "front_at_time": _front(rows.get((c.FRONT, "time"))),
        "control": _control(rows.get((c.FRONT, "acceptance")), rows.get((c.CONTROL, "acceptance"))),
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
    return e.SPEED if row["batch_size"] > 1 else e.TIMES


def _is_known(row: Row, metric: str) -> bool:
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
    unit = "times as many tokens/s" if metric == e.SPEED else "times as fast per sample"
    return f"{shown(metric).interval(row)} {unit}"


def _speculation(row: Row | None, ratio: str) -> Clause:
    """Compare with no speculation, by samples and, where that is another number, by tokens."""
    if row is None or e.SPEED not in row:
        return UNKNOWN
    outcome, tokens = sign_of_speed(row, ratio), row[e.SPEED]
    phrase = {
        FASTER: "faster than no speculation",
        SLOWER: "slower than no speculation",
        UNSHOWN: "not shown to be faster or slower than no speculation",
        NOISE: "within the timing noise of no speculation",
    }[outcome]
    other = ""
    if abs(tokens - row[ratio]) >= NOTICED:
        other = (
            f" and {tokens:.2f} times as many tokens/s, since its texts are "
            f"{tokens / row[ratio]:.2f} times as long"
        )
    return Clause(outcome, f"{phrase} ({_times(row, ratio)}{other})")


def _speed(row: Row | None, ratio: str) -> Clause:
    """Compare with ``sd`` at the same or at each method's fastest draft length."""
    if row is None:
        return Clause(MISSING, "speed not comparable with sd")
    outcome, noise, lengths = sign_of_speed(row, ratio), noise_range(row["noise"]), ""
    if row["against"] == c.SD_CHOSEN:
        lengths = (
            f", each at its fastest N ({row['draft_length']:.0f} and "
            f"{row['against_draft_length']:.0f})"
        )
    slower = " (slower)" if outcome == SLOWER else ""
    noise = f" (noise {noise})" if noise else ""
    return Clause(outcome, f"{_times(row, ratio)} as {_baseline(row)}{lengths}{noise}{slower}")


def _baseline(row: Row) -> str:
    """Name the ``sd`` that a method is compared with: that of its own drafter."""
    other = row["method"] != "sd" and row["drafter"] != DEFAULT_DRAFTER
    return f"sd {row['drafter']}" if other else "sd"


def _quality(row: Row, timeless: bool) -> Clause:
    if e.QUALITY_LESS not in row:
        return Clause(MISSING, f"{'' if timeless else 'speed only, '}quality was not measured")
    unit = shown_metric(row["quality_metric"])[0]
    outcome = sign(row, e.QUALITY_LESS)
    if outcome == UNSHOWN:
        return Clause(outcome, f"{unit} {_difference(row, e.QUALITY_LESS)} points")
    return Clause(outcome, f"{unit} {_size(row, e.QUALITY_LESS)} points {outcome}")


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
    if e.LENGTH not in row or (
        round(row[f"{e.LENGTH}_low"], 2) <= 1 <= round(row[f"{e.LENGTH}_high"], 2)
    ):
        return ""
    times = shown(e.LENGTH).interval(row)
    return f"its texts are {times} times as long as those of {_baseline(row)}"


def front_outcome(row: Row) -> str:
    """Return whether a method lies above or below the static front; above a coarse one clearly."""
    outcome = sign(row, e.ABOVE)
    clear = not row["coarse"] or sign(row, e.ABOVE_MEASURED) == HIGHER
    return UNSHOWN if outcome == HIGHER and not clear else outcome


def _front(row: Row | None) -> Clause:
    """Compare with the static front; with a coarse one also at its nearest point."""
    if row is None:
        return UNKNOWN
    side = {HIGHER: "above", LOWER: "below"}.get(sign(row, e.ABOVE))
    outcome, difference = front_outcome(row), _difference(row, e.ABOVE)
    front = f"{_FRONT if row['at'] == 'acceptance' else 'it'} at equal {row['at']}"
    if side is None:
        return Clause(outcome, f"not shown to differ from {front} ({difference})")
    text = f"{_size(row, e.ABOVE)} points {side} {front}"
    if sign(row, e.ABOVE) != outcome:
        nearest = _difference(row, e.ABOVE_MEASURED)
        text += f", but not above it at the nearest weight ({nearest})"
    return Clause(outcome, text)


def _control(front: Row | None, cooler: Row | None) -> Clause:
    """Say what a lower temperature gains where a method is above the static front."""
    if front is None or front[f"{e.ABOVE}_low"] <= 0:
        return UNKNOWN
    if cooler is None:
        sampled = front["quality_metric"] == AGREEMENT and front["temperature"] > 0
        unknown = "a lower temperature may gain as much, which this run did not measure"
        return Clause(MISSING, unknown if sampled else "")
    gained = shown_metric(front["quality_metric"])[1] * (front[e.ABOVE] - cooler[e.ABOVE])
    outcome = sign(cooler, e.ABOVE)
    more = _difference(cooler, e.ABOVE) + " more"
    more += " (no difference shown)" if outcome == UNSHOWN else ""
    return Clause(outcome, f"a lower temperature gains {gained:+.1f} there, and the method {more}")


def _difference(row: Row, metric: str) -> str:
    """Return a difference with its interval, with signs."""
    return shown(metric, row["quality_metric"]).interval(row)


def _size(row: Row, metric: str) -> str:
    """Return a difference with its interval, without signs."""
    difference = shown(metric, row["quality_metric"])._replace(form=".1f")
    low, high = sorted((abs(row[f"{metric}_low"]), abs(row[f"{metric}_high"])))
    return difference.estimate(abs(row[metric]), low, high)


def margin_word(row: Row) -> str:
    """Return in a few words the outcomes of a ``margin_verdict``; the baseline has none."""
    if not isinstance(row["against"], str):
        return ""
    if row["n"] < FEWEST:
        return FEW
    if row["again"]:
        return "same server"
    if row["loss"] == BEYOND:
        return "lossy"
    if row["loss"] != WITHIN:
        return _pace(row["speed"], row["loss"])
    return row["speed"] if row["speed"] in (FASTER, SLOWER) else "within"


def margin_verdict(row: Row) -> Row:
    """Return the outcomes and the sentence of a row of ``margin.margin_rows``."""
    by_requests, baseline = row[CONCURRENCY] == row[CONCURRENCY], row["against"]
    load = f" at concurrency {row[CONCURRENCY]:.0f}" if by_requests else ""
    if row["n"] < FEWEST:
        few = f"too few answers to the same prompts by {baseline} with {row['load']:.0f} at once"
        few += f" (n = {row['n']:.0f}; at least {FEWEST} are needed)"
        return {"sentence": f"{row['label']}: {'; '.join(filter(None, (few, row['remarks'])))}"}
    speed, times = _margin_speed(row, f" per {'request' if by_requests else 'sample'}{load}")
    loss, quality, more = _margin_quality(row)
    low, high = (round(row[e.LENGTH + end], 2) for end in ENDS[1:])
    counts = {
        "answers are missing": "missing",
        f"answers are missing of {baseline}": "missing_in_baseline",
        "texts are empty": "empty",
    }
    equal = row[f"{e.QUALITY_LESS}_low"] <= 0 <= row[f"{e.QUALITY_LESS}_high"] and speed == UNSHOWN
    parts = [
        times,
        quality,
        f"texts {shown(e.LENGTH).interval(row)} times as long" if low > 1 or high < 1 else "",
        *(f"{row[name]:.0f} {words}" for words, name in counts.items() if row[name] > 0),
        f"{percent(row['refused'], '.1f')} of texts begin like refusals"
        if row["refused"] > 0
        else "",
        "a server does not differ from itself, so differences of this size are noise"
        if row["again"] and not equal
        else "",
        row["remarks"],
    ]
    again = "the same server again: " if row["again"] else ""
    sentence = f"{row['label']}: {again}{'; '.join(filter(None, parts))}"
    return {"speed": speed, "loss": loss, "more_prompts": more, "sentence": sentence}


def _margin_speed(row: Row, unit: str) -> Clause:
    """Return the outcome of the times, and how to say it."""
    if not _is_known(row, e.TIMES):
        return Clause(MISSING, f"times not comparable{unit.removeprefix(' per sample')}")
    outcome, noise = sign_of_speed(row, e.TIMES), noise_range(row["noise"])
    difference = {SLOWER: "slower", UNSHOWN: UNSHOWN, NOISE: NOISE}.get(outcome, "")
    remark = ", ".join(filter(None, [difference, noise and f"noise {noise}"]))
    text = f"{shown(e.TIMES).interval(row)} times as fast{unit}{remark and f' ({remark})'}"
    return Clause(outcome, text)


def _margin_quality(row: Row) -> tuple[str, str, float]:
    """Return the outcome of quality, how to say it, and how many more prompts would decide."""
    unit, scale = shown_metric(row["quality_metric"])
    value, low, high = (scale * row[e.QUALITY_LESS + end] for end in ENDS)
    ends, side = ((low, high), "higher") if value > 0 else ((-high, -low), "lower")
    least, more = -row["margin"], row["prompts_needed"] - row["n"]
    parts = row | {
        "unit": unit,
        "points": f"{unit} {with_interval(abs(value), *ends, '.1f')} points {side}",
        "evidence": "a loss is shown, " if high < 0 else "a gain is shown, " if low > 0 else "",
        "margin": f"{row['margin']:g} point{'s' if row['margin'] != 1 else ''}",
        "more": float(f"{more:.2g}"),
        "differ": percent(row["differ"], ".1f"),
        "unseen": percent(unseen_share(row["n"]), ".2g"),
    }
    holds = (
        low != low,
        row["quality"] == value == 0,
        high < least,
        low <= least and parts["evidence"],
        low <= least,
        scale * row["low_with_failures"] <= least,
        scale * row["lowest"] <= least,
        True,
    )
    outcome, text = next(case for case, applies in zip(_MARGIN, holds, strict=True) if applies)
    return outcome, text.format(**parts), more if "{more" in text else math.nan
