"""Sentences and words on one arm beside another with a margin, and remarks on both.

A sentence says speed and quality, and what is missing. Remarks say what the verdict does not show.
Their answers are paired by prompt: row i of one side answers the prompt of row i of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from specbench.analysis import verdicts
from specbench.analysis.estimates import LENGTH, QUALITY_LESS, TIMES
from specbench.analysis.intervals import FEWEST, unseen_share
from specbench.analysis.output.shown import ENDS, shown
from specbench.analysis.output.table import percent, with_interval
from specbench.analysis.verdicts import (
    BEYOND,
    CONCURRENCY,
    FASTER,
    FEW,
    MISSING,
    NOISE,
    SLOWER,
    UNSHOWN,
    WITHIN,
    Clause,
    Row,
)
from specbench.tasks.metrics import shown_metric

LOOP = 0.5  # share of repeated 4-grams from which a text repeats itself
ONE_SIDED, AT_LEAST = 0.05, 3  # share and number of answers that one side alone has
ORDINARY = {"eos", "stop"}  # ends of texts
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
        return verdicts.speed_words(row["speed"], row["loss"])
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
    low, high = (round(row[LENGTH + end], 2) for end in ENDS[1:])
    counts = {
        "answers are missing": "missing",
        f"answers are missing of {baseline}": "missing_in_baseline",
        "texts are empty": "empty",
    }
    equal = row[f"{QUALITY_LESS}_low"] <= 0 <= row[f"{QUALITY_LESS}_high"] and speed == UNSHOWN
    parts = [
        times,
        quality,
        f"texts {shown(LENGTH).interval(row)} times as long" if low > 1 or high < 1 else "",
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
    if not verdicts.is_known(row, TIMES):
        return Clause(MISSING, f"times not comparable{unit.removeprefix(' per sample')}")
    outcome, noise = verdicts.sign_of_speed(row, TIMES), verdicts.noise_range(row["noise"])
    difference = {SLOWER: "slower", UNSHOWN: UNSHOWN, NOISE: NOISE}.get(outcome, "")
    remark = ", ".join(filter(None, [difference, noise and f"noise {noise}"]))
    text = f"{shown(TIMES).interval(row)} times as fast{unit}{remark and f' ({remark})'}"
    return Clause(outcome, text)


def _margin_quality(row: Row) -> tuple[str, str, float]:
    """Return the outcome of quality, how to say it, and how many more prompts would decide."""
    unit, scale = shown_metric(row["quality_metric"])
    value, low, high = (scale * row[QUALITY_LESS + end] for end in ENDS)
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


def ends_of(texts: pd.DataFrame) -> str:
    """Return how often texts ended for each reason: ``eos 20, length 4``."""
    counts = texts["stopped_by"].value_counts()
    return ", ".join(f"{reason} {number}" for reason, number in counts.items())


def ends_normally(ends: str) -> bool:
    """Return whether texts with these ends ended by an end token or a stop string."""
    return {end.partition(" ")[0] for end in ends.split(", ") if end} <= ORDINARY


def remarks_on(arm: pd.DataFrame, base: pd.DataFrame) -> Iterator[str]:
    """Yield what one side alone does, what servers did otherwise than asked, and contradictions."""
    if arm.empty:
        return
    sides = {side["arm"].iloc[0]: side for side in (arm, base)}
    yield from _one_sided(sides, "stopped_by", lambda ends: ends == "length", "end at the limit")
    yield from _one_sided(
        *(sides, "repetition", lambda shares: shares >= LOOP, "repeat themselves, as loops do")
    )
    yield from _unlike_prompts(arm, base)
    if "options_refused" not in arm:
        return
    refused = {name: _values_in(side["options_refused"], ", ") for name, side in sides.items()}
    for name, options in refused.items():
        if options:
            yield f"{name} refused {', '.join(options)}, so its own values may apply"
    if len({*map(tuple, refused.values())}) > 1:
        yield "both may be sampled differently, so the difference in quality may come from that"
    for name, side in sides.items():
        for text, count in _values_in(side["contradictions"], "; ").items():
            yield f"{name}: {text} in {count} of {len(side)} answers"


def _one_sided(
    sides: Mapping[str, pd.DataFrame],
    column: str,
    applies: Callable[[pd.Series], pd.Series],
    words: str,
) -> Iterator[str]:
    """Say that the answers of one side alone, or far more of them, are of a kind."""
    counts = {name: int(applies(side[column]).sum()) for name, side in sides.items()}
    (fewer, least), (more, most) = sorted(counts.items(), key=lambda item: item[1])
    total = len(sides[more])
    if most >= max(AT_LEAST, ONE_SIDED * total) and least <= most / 2:
        yield f"{most} of {total} answers of {more} {words}, and {least or 'none'} of {fewer}"


def _unlike_prompts(arm: pd.DataFrame, base: pd.DataFrame) -> Iterator[str]:
    """Say where servers count other numbers of tokens in equal prompts, or took them from a cache.

    The prompt of a later turn contains answers, which may differ.
    """
    first = (arm["turn"].fillna(1) == 1) & arm["prompt_tokens"].notna()
    first &= base["prompt_tokens"].notna()
    names, sides = [side["arm"].iloc[0] for side in (arm, base)], [arm[first], base[first]]
    if unlike := int((sides[0]["prompt_tokens"] != sides[1]["prompt_tokens"]).sum()):
        means = [side["prompt_tokens"].mean() for side in sides]
        yield (
            f"{names[0]} counts {means[0]:,.1f} and {names[1]} {means[1]:,.1f} tokens in a prompt, "
            f"and other numbers in {unlike} of {len(sides[0])} equal prompts: their templates, "
            "system prompts or first tokens differ, or one cuts prompts"
        )
    cached = [side.get("cached_tokens", pd.Series(math.nan, side.index)) for side in (arm, base)]
    if cached[0].fillna(0).sum() != cached[1].fillna(0).sum():
        shares = [
            percent(tokens.sum() / side.loc[tokens.notna(), "prompt_tokens"].sum(), ".0f")
            if tokens.notna().any()
            else "an unknown share"
            for tokens, side in zip(cached, (arm, base), strict=True)
        ]
        yield (
            f"{names[0]} took {shares[0]} and {names[1]} {shares[1]} of the tokens of prompts from "
            "a cache, so their times differ by that, too"
        )


def _values_in(texts: pd.Series, separator: str) -> dict[str, int]:
    """Return how often each part of separated texts occurs, by part."""
    parts = texts.dropna().str.split(separator).explode()
    return dict(parts[parts != ""].value_counts(sort=False))
