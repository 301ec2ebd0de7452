"""The words of verdicts: what the intervals of a method's speed and quality show, in every mode.

A row has the figures of a method beside a baseline: ``sd``, or any method with a margin. The same
intervals have the same words in tables, sentences, reports and JSON. "Open" is said only of an
interval that includes no difference; where it excludes one, its ends are said.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest

import pandas as pd

from specbench.analysis.statistics.estimates import (
    ABOVE,
    ABOVE_MEASURED,
    QUALITY_LESS,
    SPEED,
    TIMES,
)
from specbench.analysis.statistics.intervals import FEWEST
from specbench.analysis.tables.shown import shown
from specbench.analysis.tables.table import number
from specbench.analysis.verdicts.arm_remarks import CONTENT_WORDS
from specbench.analysis.verdicts.contrasts import Row
from specbench.tasks.metrics import shown_metric

FASTER, SLOWER, HIGHER, LOWER = "faster", "slower", "higher", "lower"
#: The interval includes no difference; it reaches into the noise of sd against itself; there are
#: too few prompts; it was not measured.
UNSHOWN, NOISE, FEW, MISSING = "no difference shown", "within noise", "too few prompts", ""
#: A loss beside a margin: it is within the margin, it is shown and not within, or neither.
EXCLUDED, SHOWN, OPEN = "excluded", "shown", "open"
SAME = "same server"
CONCURRENCY = "concurrency"  # the name of a server's load in the column ``settings``

#: What words of a verdict mean, beside which this text stands.
_MEANINGS = {
    ("faster", "slower"): "by the 95 % interval, and beyond the noise of times if it was measured",
    ("within noise",): "not beyond what sd differs from itself",
    ("better", "worse"): "in quality, between the ends of the interval",
    ("within",): "a larger loss is excluded, also if missing answers are wrong",
    ("open",): "neither a difference nor that there is none is shown",
}


def word(row: Row) -> str:
    """Return a verdict on a row with a baseline in a few words; empty without a baseline."""
    if not isinstance(row["against"], str):
        return ""
    parts = _words_of(row)
    if len(parts) == 1:
        return parts[0]
    if parts == ["speed open", "quality open"]:
        parts = ["open"]
    if (missing := row.get("missing", 0)) > 0:
        parts.append(f"{missing:.0f} missing")
    for name, words in CONTENT_WORDS.items():
        if row.get(name, 0) > 0:
            parts.append(f"{row[name]:.0f} of {row['answers']:.0f} {words}")
    return "; ".join(filter(None, parts))


def legend(verdicts: Iterable[str]) -> str:
    """Explain the words that some verdicts use."""
    used = {*re.findall(r"within noise|[a-z]+", " ".join(verdicts))}
    parts = [
        f"{', '.join(word for word in words if word in used)}: {meaning}."
        for words, meaning in _MEANINGS.items()
        if used & {*words}
    ]
    return " ".join(parts)


def count_words(rows: Iterable[Row]) -> str:
    """Count the words of one method's verdicts, of which each task has one."""
    verdicts = [_words_of(row, ends=False) for row in rows]
    clauses, tasks = [], f" of {len(verdicts)} task{'s' if len(verdicts) > 1 else ''}"
    for words in zip_longest(*verdicts):  # of speed, then of quality
        counts = sorted(Counter(filter(None, words)).items(), key=lambda c: ("open" in c[0], c[0]))
        clauses.append(", ".join(f"{name} on {count}" for name, count in counts))
    return re.sub(r"( on \d+)", rf"\1{tasks}", "; ".join(filter(None, clauses)), count=1)


def _words_of(row: Row, *, ends: bool = True) -> list[str]:
    """Return the words of speed and of quality, or the only word if neither is compared."""
    if row["n"] < FEWEST:
        return [FEW]
    if row.get("again") is True:
        return [SAME]
    metric = speed_of(row)
    pace = sign_of_speed(row, metric) if is_known(row, metric) else ""
    pace = {UNSHOWN: "speed open", NOISE: "speed within noise"}.get(pace, pace)
    return [pace, _quality_word(row, ends)]


def _quality_word(row: Row, with_ends: bool) -> str:
    """Say which difference is shown, between which ends, and whether it is within the margin."""
    if not is_known(row, QUALITY_LESS):
        return "quality not measured"
    if row["quality"] == row[QUALITY_LESS] == 0:
        return "all scores 0"
    outcome, scale = sign(row, QUALITY_LESS), shown_metric(row["quality_metric"])[1]
    within = f"within {points(row['margin'])}" if row.get("loss") == EXCLUDED else ""
    if outcome == UNSHOWN:
        return within or "quality open"
    side, within = ("worse", within) if outcome == LOWER else ("better", "")
    if not with_ends:
        return f"{side} {within}".strip()
    ends = sorted(abs(scale * row[f"{QUALITY_LESS}_{end}"]) for end in ("low", "high"))
    low, high = (number(end, ".1f" if end >= 0.05 else ".1g") for end in ends)
    return f"{side} by {low} to {high}" + (f", within {row['margin']:g}" if within else "")


def points(margin: float) -> str:
    """Return a number of points with its unit."""
    return f"{margin:g} point{'s' if margin != 1 else ''}"


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


def front_outcome(row: Row) -> str:
    """Return whether a method lies above or below the static front; above a coarse one clearly."""
    outcome = sign(row, ABOVE)
    clear = not row["coarse"] or sign(row, ABOVE_MEASURED) == HIGHER
    return UNSHOWN if outcome == HIGHER and not clear else outcome


def place_of(row: Row) -> str:
    """Say whether a method is above the static front, and by how much."""
    words = {HIGHER: "yes", LOWER: "no, below", UNSHOWN: "not shown"}
    distance = shown(ABOVE, row["quality_metric"])
    if ABOVE not in row:
        return ""
    if math.isnan(row[ABOVE]):  # no measured weight gains as much, if a prompt can tell
        return "no weight: add w = 0" if row["n"] > 1 else ""
    text = distance.interval(row)
    outcome = front_outcome(row)
    coarse = outcome == UNSHOWN and row[f"{ABOVE}_low"] > 0  # not above the nearest weight
    return f"{'coarse' if coarse else words[outcome]} {text}" if text else ""


def resolution(widths: Iterable[float], factors: Iterable[float]) -> str:
    """Say how precisely prompts tell quality and speed, by the widest intervals; NaN is ignored.

    ``widths`` are of differences in points, ``factors`` upper ends of ratios over lower ones.
    """
    width, factor = (pd.Series(ends, dtype=float).max() for ends in (widths, factors))
    parts = [f"quality to ±{width / 2:.1f} points"] if width == width else []
    parts += [f"speed to ±{100 * (math.sqrt(factor) - 1):.0f} %"] if factor == factor else []
    return " and ".join(parts)


def noise_range(noise: float) -> str:
    """Return the ratios of times that noise explains; empty if the noise is unknown."""
    return f"{1 / noise:.2f} to {noise:.2f}" if noise == noise else ""
