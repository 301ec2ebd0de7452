"""Sentences on one method, beside ``sd`` and its front, or beside any method with a margin.

Relative to ``sd``, the sentence begins with the speed relative to no speculation. Speed and quality
relative to SD follow, then the quality relative to the static front at equal acceptance and at
equal time, and whatever changes the meaning of these figures: prompts that are missing, texts of
another length, a coarse front, a lower temperature that gains as much. A difference is named only
if its 95 % interval excludes zero. Below ``intervals.FEWEST`` prompts there is no interval and so
no verdict.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.estimates import (
    ABOVE,
    ABOVE_MEASURED,
    LENGTH,
    QUALITY_LESS,
    SPEED,
    TIMES,
)
from specbench.analysis.statistics.intervals import FEWEST, unseen_share
from specbench.analysis.tables.shown import ENDS, shown
from specbench.analysis.tables.table import number, percent, with_interval
from specbench.analysis.verdicts.contrasts import (
    ALONE,
    CONTROL,
    FRONT,
    OWN,
    SD,
    SD_CHOSEN,
    SPEEDS,
    Row,
)
from specbench.analysis.verdicts.words import (
    CONCURRENCY,
    EXCLUDED,
    FASTER,
    FEW,
    HIGHER,
    LOWER,
    MISSING,
    NOISE,
    OPEN,
    SHOWN,
    SLOWER,
    UNSHOWN,
    front_outcome,
    is_known,
    noise_range,
    points,
    sign,
    sign_of_speed,
    speed_of,
    word,
)
from specbench.runs.frames import rows_of
from specbench.runs.labels import DEFAULT_DRAFTER
from specbench.tasks.metrics import AGREEMENT, shown_metric

#: What a verdict says, each in one of the words above. ``speculation`` is the speed relative to no
#: speculation, ``speed`` and ``quality`` are relative to ``sd``. ``front`` is quality relative to
#: the randomised static front at equal acceptance, ``front_at_time`` at equal time, ``control``
#: relative to the sharpened front at equal acceptance.
OUTCOMES = ("speculation", "speed", "quality", "front", "front_at_time", "control")
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


class Clause(NamedTuple):
    """What one figure shows, and how to say it."""

    outcome: str
    text: str


UNKNOWN = Clause(MISSING, "")


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
    words = _difference(row, QUALITY_LESS) | {"unit": shown_metric(row["quality_metric"])[0]}
    return _clause("quality", sign(row, QUALITY_LESS), **words)


def _beside_sd(speed: Clause, quality: Clause, first: Row) -> str:
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


def _front(row: Row | None) -> Clause:
    """Compare with the static front; with a coarse one also at its nearest point."""
    if row is None:
        return UNKNOWN
    if math.isnan(row[ABOVE]):  # though the draft alone may gain as much
        reach = "accepts as much" if row["at"] == "acceptance" else "is as fast"
        return Clause(MISSING, f"no measured static weight {reach}")
    front = "the randomised static front" if row["at"] == "acceptance" else "it"
    words = _difference(row, ABOVE) | {"front": f"{front} at equal {row['at']}"}
    outcome, side = front_outcome(row), sign(row, ABOVE)
    clause = _clause("front", side, **words)
    if side == outcome:
        return clause
    nearest = _difference(row, ABOVE_MEASURED)["difference"]
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
    words = _difference(cooler, ABOVE) | {"gained": number(gained, "+.1f")}
    return _clause("control", sign(cooler, ABOVE), **words)


def _difference(row: Row, metric: str) -> dict[str, str]:
    """Return a difference with its interval, with signs, and its size, without."""
    figure = shown(metric, row["quality_metric"])
    low, high = sorted((abs(row[f"{metric}_low"]), abs(row[f"{metric}_high"])))
    values = [row[metric], row.get(f"{metric}_least", math.nan)]
    values = sorted(abs(value) for value in values if value == value)
    form = ".1f" if round(figure.scale * values[-1], 1) else ".2f"  # 0.0 would show nothing
    size = figure._replace(form=form).estimate(values[-1], low, high, values[0])
    return {"difference": figure.interval(row), "size": size}


def margin_verdict(row: Row) -> Row:
    """Return the outcomes, the words and the sentence of a row of ``margin.margin_rows``."""
    by_requests, baseline = row[CONCURRENCY] == row[CONCURRENCY], row["against"]
    if row["n"] < FEWEST:
        few = (
            f"too few answers to the same prompts by {baseline} at concurrency {row['load']:.0f} "
            f"(n = {row['n']:.0f}; at least {FEWEST} are needed)"
        )
        sentence = f"{row['label']}: {'; '.join(filter(None, (few, row['remarks'])))}"
        return {"verdict": FEW, "loss": None, "more_prompts": math.nan, "sentence": sentence}
    load = f" at concurrency {row[CONCURRENCY]:.0f}" if by_requests else ""
    speed, times = _margin_speed(row, f" per {'request' if by_requests else 'sample'}{load}")
    loss, quality, more = _margin_quality(row)
    low, high = (round(row[LENGTH + end], 2) for end in ENDS[1:])
    counts = {
        "answers are missing": "missing",
        f"answers of {baseline} are missing": "missing_in_baseline",
    }
    noise = row["again"] and (speed != UNSHOWN or sign(row, QUALITY_LESS) != UNSHOWN)
    parts = [
        times,
        quality,
        f"texts {shown(LENGTH).interval(row)} times as long" if low > 1 or high < 1 else "",
        *(f"{row[name]:.0f} {words}" for words, name in counts.items() if row[name] > 0),
        f"{percent(row['refused'], '.1f')} of texts begin like refusals"
        if row["refused"] > 0
        else "",
        "a server does not differ from itself, so differences of this size are noise" * noise,
        row["remarks"],
    ]
    again = "the same server again: " if row["again"] else ""
    return {
        "verdict": word(row | {"loss": loss}),
        "speed": speed,
        "loss": loss,
        "more_prompts": more,
        "sentence": f"{row['label']}: {again}{'; '.join(filter(None, parts))}",
    }


def _margin_speed(row: Row, unit: str) -> Clause:
    """Return the outcome of the times, and how to say it."""
    metric = speed_of(row)
    if not is_known(row, metric):
        return Clause(MISSING, f"times not comparable{unit.removeprefix(' per sample')}")
    outcome, noise = sign_of_speed(row, metric), noise_range(row["noise"])
    difference = "" if outcome == FASTER else outcome
    remark = ", ".join(filter(None, [difference, noise and f"noise {noise}"]))
    times = f"times as fast{unit}" if metric == TIMES else "times as many tokens/s"
    return Clause(outcome, f"{shown(metric).interval(row)} {times}{remark and f' ({remark})'}")


def _margin_quality(row: Row) -> tuple[str | None, str, float]:
    """Return the loss beside the margin, how to say it, and how many more prompts would decide."""
    unit, scale = shown_metric(row["quality_metric"])
    value, low, high = (scale * row[QUALITY_LESS + end] for end in ENDS)
    if math.isnan(low):
        return None, "quality was not measured", math.nan
    if row["quality"] == value == 0:
        zero = f"{unit} 0 of all answers, so no loss can show: check the prompts"
        return OPEN, zero, math.nan
    ends, side = ((low, high), "higher") if value > 0 else ((-high, -low), "lower")
    evidence = "a loss is shown, " if high < 0 else "a gain is shown, " if low > 0 else ""
    form = ".2f" if evidence and not round(value, 1) else ".1f"
    size = f"{with_interval(abs(value), *ends, form)} points"
    difference = f"{unit} {size} {side}: "
    if round(abs(value), 1) == 0 and not evidence:
        difference = f"no difference in {unit} seen ({size}): "
    loss, margin = SHOWN if high < 0 else OPEN, points(row["margin"])
    least, more = -row["margin"], row["prompts_needed"] - row["n"]
    decide = f"about {float(f'{more:.2g}'):.0f} more"
    if high < least:
        return loss, f"{difference}beyond the margin of {margin}", math.nan
    if low <= least and evidence:
        return loss, f"{difference}{evidence}not shown to be within {margin}", math.nan
    if low <= least:
        differing = f"(scores differ on {percent(row['differ'], '.1f')} of prompts)"
        decide = f"{decide} prompts would decide if both are equal {differing}"
        return loss, f"{difference}not shown to be within {margin}; {decide}", more
    difference += evidence
    if scale * row["low_with_failures"] <= least:
        unseen = percent(unseen_share(row["n"]), ".2g")
        reason = f"since {row['n']:.0f} prompts cannot exclude {unseen} of failed answers"
        difference += f"not shown to be within {margin}, {reason}"
        return loss, f"{difference}; {decide} would decide", more
    if scale * row["lowest"] <= least:
        return loss, f"{difference}not within {margin} if the missing answers are wrong", math.nan
    whole = f"{difference}within {margin}" if low <= 0 else difference.removesuffix(", ")
    return EXCLUDED, whole, math.nan
