"""Sentences and words on one method: what its figures show, and at which price.

Relative to ``sd``, the sentence begins with the speed relative to no speculation. Speed and quality
relative to SD follow, then the quality relative to the static front at equal acceptance and at
equal time, and whatever changes the meaning of these figures: prompts that are missing, texts of
another length, a coarse front, a lower temperature that gains as much. With a margin, relative to
any other method, it says speed and quality, and what is missing. A difference is named only if its
95 % interval excludes no difference. Below ``intervals.FEWEST`` prompts there is no interval and so
no verdict.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis import comparison as c
from specbench.analysis import estimates as e
from specbench.analysis.intervals import FEWEST, unseen_share
from specbench.runs.frames import rows_of
from specbench.runs.labels import DEFAULT_DRAFTER
from specbench.runs.shown import ENDS, shown
from specbench.runs.table import percent, with_interval
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

Row = dict[Any, Any]


class Clause(NamedTuple):
    """What one figure shows, and how to say it."""

    shown: str
    text: str


def word(row: Row) -> str:
    """Return in a few words what a method changes relative to ``sd`` at the same N.

    Args:
        row: A setting with the ends of its figures, such as ``times_as_fast_low``.
    """
    if row["against"] != c.SD:
        return ""
    if row["n"] < FEWEST:
        return FEW
    ratio = e.RATE if row["batch_size"] > 1 else e.TIMES
    speed, difference = sign_of_speed(_ends(row, ratio)), _ends(row, e.QUALITY_LESS)
    outcome = _sign(difference, 0, 0, LOWER, HIGHER)
    if outcome in (LOWER, HIGHER):
        points = abs(shown_metric(row["quality_metric"])[1] * row[e.QUALITY_LESS])
        pace = f" at {row[ratio]:.2f} times" if speed in (FASTER, SLOWER) else "; speed open"
        if math.isnan(_ends(row, ratio)["ci_low"]):  # no times to compare
            pace = ""
        return f"{points:.1f} points {'worse' if outcome == LOWER else 'better'}{pace}"
    return _pace(speed, MISSING if math.isnan(difference["ci_low"]) else UNSHOWN)


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
    by_comparison = {(row["against"], row["at"], row["metric"]): row for row in rows_of(alike)}
    ratio = e.RATE if alike["batch_size"].iloc[0] > 1 else e.TIMES
    times = {row["against"]: row for row in rows_of(speed) if row["metric"] == ratio}
    tokens = {row["against"]: row for row in rows_of(speed) if row["metric"] == e.RATE}
    alone = times.get(c.ALONE)
    beside_sd = times.get(c.SD_CHOSEN) or times.get(c.SD)
    first = beside_sd or alone or next(iter(by_comparison.values()))
    n, missing = int(first["n"]), int(first["missing"])
    timeless = first["batch_size"] > 1 and not first["blocks"] >= FEWEST
    facts = {name: first[name] for name in ("method", "label", "draft_length", "n", "missing")}
    if n < FEWEST:
        few = f"too few prompts for a verdict (n = {n}; at least {FEWEST} are needed)"
        return facts | dict.fromkeys(OUTCOMES, FEW) | {"sentence": few}
    better = by_comparison.get((c.SD, c.OWN, e.QUALITY_LESS))
    has_sd = any(against in (c.SD, c.SD_CHOSEN) for against, *_ in by_comparison)
    parts = {
        "speculation": _speculation(alone, tokens.get(c.ALONE)),
        "speed": _speed(beside_sd) if has_sd and not timeless else Clause(MISSING, ""),
        "quality": _quality(better, timeless) if has_sd else Clause(MISSING, ""),
        "front": _front(by_comparison, "acceptance"),
        "front_at_time": _front(by_comparison, "time"),
        "control": _control(by_comparison),
    }
    lost = f"n = {n} of {n + missing}: {missing} prompts have no result of this method"
    sentence = [
        lost if missing else "",
        parts["speculation"].text,
        _beside_sd(parts["speed"], parts["quality"], first),
        _length(by_comparison.get((c.SD, c.OWN, e.LENGTH))),
        ", ".join(filter(None, [parts["front"].text, parts["front_at_time"].text])),
        parts["control"].text,
    ]
    outcomes = {name: part.shown for name, part in parts.items()}
    return facts | outcomes | {"sentence": "; ".join(filter(None, sentence))}


def _ends(row: Row, metric: str) -> Row:
    """Return the interval of one figure of a setting, as in a row of that figure alone."""
    low, high = (row.get(metric + end, math.nan) for end in ENDS[1:])
    return {"ci_low": low, "ci_high": high, "noise": row["noise"]}


def _sign(row: Row, least: float, most: float, low: str, high: str) -> str:
    """Return which side of a range the interval lies on: ``low``, ``high`` or neither."""
    return high if row["ci_low"] > most else low if row["ci_high"] < least else UNSHOWN


def sign_of_speed(row: Row) -> str:
    """Return whether a speed-up is a difference that exceeds the noise of ``sd``."""
    outcome, noise = _sign(row, 1, 1, SLOWER, FASTER), row["noise"]
    if noise != noise or outcome == UNSHOWN:
        return outcome
    return outcome if _sign(row, 1 / noise, noise, SLOWER, FASTER) == outcome else NOISE


def noise_range(noise: float) -> str:
    """Return the ratios of times that noise explains; empty if the noise is unknown."""
    return f"{1 / noise:.2f} to {noise:.2f}" if noise == noise else ""


def _times(row: Row) -> str:
    ratio = shown(row["metric"]).estimate(row["value"], row["ci_low"], row["ci_high"])
    unit = "times as many tokens/s" if row["metric"] == e.RATE else "times as fast per sample"
    return f"{ratio} {unit}"


def _speculation(row: Row | None, tokens: Row | None) -> Clause:
    """Compare with no speculation, by samples and, where that is another number, by tokens."""
    if row is None or tokens is None:
        return Clause(MISSING, "")
    outcome = sign_of_speed(row)
    phrases = {
        FASTER: "faster than no speculation",
        SLOWER: "slower than no speculation",
        UNSHOWN: "not shown to be faster or slower than no speculation",
        NOISE: "not told from no speculation beyond noise",
    }
    other = ""
    if abs(tokens["value"] - row["value"]) >= NOTICED:
        longer = tokens["value"] / row["value"]
        other = f" and {tokens['value']:.2f} times as many tokens/s, since its texts are "
        other += f"{longer:.2f} times as long"
    return Clause(outcome, f"{phrases[outcome]} ({_times(row)}{other})")


def _speed(row: Row | None) -> Clause:
    """Compare with ``sd`` at the same or at each method's fastest draft length."""
    if row is None:
        return Clause(MISSING, "speed not comparable with sd")
    outcome, noise = sign_of_speed(row), row["noise"]
    against = f" as {_baseline(row)}"
    if row["against"] == c.SD_CHOSEN:
        lengths = (row["draft_length"], row["against_draft_length"])
        against += ", each at its fastest N ({:.0f} and {:.0f})".format(*lengths)
    slower = " (slower)" if outcome == SLOWER else ""
    if noise == noise:
        against += f" (noise {noise_range(noise)})"
    return Clause(outcome, f"{_times(row)}{against}{slower}")


def _baseline(row: Row) -> str:
    """Name the ``sd`` that a method is compared with: that of its own drafter."""
    other = row["method"] != "sd" and row["drafter"] != DEFAULT_DRAFTER
    return f"sd {row['drafter']}" if other else "sd"


def _quality(row: Row | None, timeless: bool) -> Clause:
    if row is None:
        return Clause(MISSING, f"{'' if timeless else 'speed only, '}quality was not measured")
    unit = shown_metric(row["quality_metric"])[0]
    outcome = _sign(row, 0, 0, LOWER, HIGHER)
    if outcome == UNSHOWN:
        return Clause(outcome, f"{unit} {_difference(row)} points")
    return Clause(outcome, f"{unit} {_size(row)} points {outcome}")


def _beside_sd(speed: Clause, quality: Clause, first: Row) -> str:
    """Say speed and quality relative to ``sd``."""
    figures = [part for part in (speed, quality) if part.text]
    if figures and {part.shown for part in figures} <= {UNSHOWN, NOISE}:
        texts = ", ".join(part.text for part in figures)
        return f"no difference from {_baseline(first)} shown at n = {first['n']}: {texts}"
    ending = {UNSHOWN: " (no difference shown)", NOISE: " (within the timing noise)"}
    return ", ".join(part.text + ending.get(part.shown, "") for part in figures)


def _length(row: Row | None) -> str:
    """Say how much longer texts are than those of ``sd``, if that is shown in two decimals."""
    if row is None or round(row["ci_low"], 2) <= 1 <= round(row["ci_high"], 2):
        return ""
    times = shown(row["metric"]).estimate(row["value"], row["ci_low"], row["ci_high"])
    return f"its texts are {times} times as long as those of {_baseline(row)}"


def front_outcome(row: Row) -> str:
    """Return whether a method lies above or below the static front; above a coarse one clearly.

    Args:
        row: A setting with the ends of its distances, such as ``quality_above_low``.
    """
    outcome = _sign(_ends(row, e.ABOVE), 0, 0, LOWER, HIGHER)
    if outcome == HIGHER and row["coarse"] and not _ends(row, e.ABOVE_MEASURED)["ci_low"] > 0:
        return UNSHOWN
    return outcome


def _front(rows: dict[tuple[str, str, str], Row], at: str) -> Clause:
    """Compare with the static front; with a coarse one also at its nearest point."""
    if (row := rows.get((c.FRONT, at, e.ABOVE))) is None:
        return Clause(MISSING, "")
    outcome = _sign(row, 0, 0, LOWER, HIGHER)
    side = {HIGHER: "above", LOWER: "below"}.get(outcome)
    name = _FRONT if at == "acceptance" else "it"
    text = f"{_size(row)} points {side} {name}" if side else f"not shown to differ from {name}"
    text += f" at equal {at}" + (f" ({_difference(row)})" if not side else "")
    measured = rows[c.FRONT, at, e.ABOVE_MEASURED]
    if outcome == HIGHER and row["coarse"] and _sign(measured, 0, 0, LOWER, HIGHER) != HIGHER:
        between = f"but not above it at the nearest weight ({_difference(measured)})"
        return Clause(UNSHOWN, f"{text}, {between}")
    return Clause(outcome, text)


def _control(rows: dict[tuple[str, str, str], Row]) -> Clause:
    """Say what a lower temperature gains where a method is above the static front."""
    front = rows.get((c.FRONT, "acceptance", e.ABOVE))
    cooler = rows.get((c.CONTROL, "acceptance", e.ABOVE))
    if front is None or front["ci_low"] <= 0:
        return Clause(MISSING, "")
    if cooler is None:
        sampled = front["quality_metric"] == AGREEMENT and front["temperature"] > 0
        unknown = "a lower temperature may gain as much, which this run did not measure"
        return Clause(MISSING, unknown if sampled else "")
    gained = shown_metric(front["quality_metric"])[1] * (front["value"] - cooler["value"])
    outcome = _sign(cooler, 0, 0, LOWER, HIGHER)
    more = f"{_difference(cooler)} more{' (no difference shown)' if outcome == UNSHOWN else ''}"
    return Clause(outcome, f"a lower temperature gains {gained:+.1f} there, and the method {more}")


def _difference(row: Row) -> str:
    """Return a difference with its interval, with signs."""
    difference = shown(row["metric"], row["quality_metric"])
    return difference.estimate(row["value"], row["ci_low"], row["ci_high"])


def _size(row: Row) -> str:
    """Return a difference with its interval, without signs."""
    difference = shown(row["metric"], row["quality_metric"])._replace(form=".1f")
    low, high = sorted((abs(row["ci_low"]), abs(row["ci_high"])))
    return difference.estimate(abs(row["value"]), low, high)


def margin_word(row: Row) -> str:
    """Return in a few words the outcomes of a ``margin_verdict``; the baseline has none."""
    if not isinstance(row["against"], str):
        return ""
    if row["n"] < FEWEST:
        return FEW
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
    ends = _ends(row, e.TIMES)
    if math.isnan(ends["ci_low"]):
        return Clause(MISSING, f"times not comparable{unit.removeprefix(' per sample')}")
    outcome, noise = sign_of_speed(ends), noise_range(row["noise"])
    difference = {SLOWER: "slower", UNSHOWN: UNSHOWN, NOISE: NOISE}.get(outcome, "")
    remark = ", ".join(filter(None, [difference, noise and f"noise {noise}"]))
    text = f"{shown(e.TIMES).interval(row)} times as fast{unit}{remark and f' ({remark})'}"
    return Clause(outcome, text)


def _margin_quality(row: Row) -> tuple[str, str, float]:
    """Return the outcome of quality, how to say it, and how many more prompts would decide."""
    unit, scale = shown_metric(row["quality_metric"])
    margin = f"{row['margin']:g} point{'s' if row['margin'] != 1 else ''}"
    value, low, high = (scale * row[e.QUALITY_LESS + end] for end in ENDS)
    if low != low:
        return MISSING, "quality was not measured", math.nan
    if row["quality"] == value == 0:
        return UNSHOWN, f"{unit} 0 of all answers, so no loss can show: check the prompts", math.nan
    side = "higher" if value > 0 else "lower"
    ends = (low, high) if value > 0 else (-high, -low)
    points = f"{unit} {with_interval(abs(value), *ends, '.1f')} points {side}"
    evidence = "a loss is shown, " if high < 0 else "a gain is shown, " if low > 0 else ""
    if high < -row["margin"]:
        return BEYOND, f"{points}: lossy beyond the margin of {margin}", math.nan
    if low <= -row["margin"]:
        text = f"{points}: {evidence}not shown to be within {margin}"
        if evidence:
            return UNSHOWN, text, math.nan
        more = row["prompts_needed"] - row["n"]
        text += f"; about {float(f'{more:.2g}'):.0f} more prompts would decide"
        return UNSHOWN, f"{text} (the scores of {percent(row['differ'], '.1f')} differ)", more
    if scale * row["low_with_failures"] <= -row["margin"]:
        more, share = row["prompts_needed"] - row["n"], percent(unseen_share(row["n"]), ".2g")
        unseen = f"{row['n']:.0f} prompts cannot exclude {share} of failed answers"
        text = f"{points}: {evidence}not shown to be within {margin}, since {unseen}"
        return UNSHOWN, f"{text}; about {float(f'{more:.2g}'):.0f} more would decide", more
    if scale * row["lowest"] <= -row["margin"]:
        wrong = f"not within {margin} if the missing answers are wrong"
        return UNSHOWN, f"{points}: {evidence}{wrong}", math.nan
    return WITHIN, f"{points}: {evidence}within {margin}", math.nan
