"""Remarks on one arm beside another: what a verdict on speed and quality does not show.

Their answers are paired by prompt: row i of one side answers the prompt of row i of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from specbench.analysis.tables.table import percent
from specbench.runs.columns import CALLS, NOTHING, THOUGHTS

LOOP = 0.5  # share of repeated 4-grams from which a text repeats itself
ONE_SIDED, AT_LEAST = 0.05, 3  # share and number of answers that one side alone has
#: What an answer without a text has.
CONTENT_WORDS = {
    THOUGHTS: "have thoughts only",
    CALLS: "have calls of tools only",
    NOTHING: "are empty",
}


def remarks_on(arm: pd.DataFrame, base: pd.DataFrame) -> Iterator[str]:
    """Yield what one side alone does, what servers did otherwise than asked, and contradictions."""
    if arm.empty:
        return
    sides = {side["arm"].iloc[0]: side for side in (arm, base)}
    yield from _contents(sides)
    yield from _one_sided(sides, "stopped_by", lambda ends: ends == "length", "end at the limit")
    yield from _one_sided(
        *(sides, "repetition", lambda shares: shares >= LOOP, "repeat themselves, as loops do")
    )
    yield from _unlike_prompts(arm, base)
    models = [side.get("server_model", pd.Series(dtype=str)).dropna() for side in (arm, base)]
    first, second = (" and ".join(dict.fromkeys(names)) for names in models)
    if first and second and first != second:
        names = [*sides]
        yield (
            f"{names[0]} is the model {first}, and {names[1]} {second}: if these are two, the "
            "differences are theirs"
        )
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


def contents_of(texts: pd.DataFrame) -> dict[str, int]:
    """Return how many answers have no text to score, by what they have instead."""
    if "content" in texts:
        counts = texts["content"].value_counts()
    else:  # our own engine's, or of an earlier run: an end token alone is no text
        is_empty = (texts["output_tokens"] == 1) & (texts["stopped_by"] == "eos")
        is_empty |= texts["output_tokens"] == 0
        if "delivered_bytes" in texts:
            delivered = texts["delivered_bytes"]
            is_empty = (delivered == 0).where(delivered.notna(), is_empty)
        counts = pd.Series({NOTHING: is_empty.sum()})
    return {name: int(counts.get(name, 0)) for name in CONTENT_WORDS if counts.get(name, 0)}


def _contents(sides: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    """Say how many answers of each side have no text, and how many of these the limit cut."""
    for name, side in sides.items():
        for content, count in contents_of(side).items():
            cut = 0
            if "content" in side:
                cut = int(((side["content"] == content) & (side["stopped_by"] == "length")).sum())
            words = CONTENT_WORDS[content]
            limit = f", {cut} of them at the limit" if cut else ""
            yield f"{count} of {len(side)} answers of {name} {words}{limit}"
        if contents_of(side).get(THOUGHTS):
            yield (
                f"the thoughts of {name} are not scored: raise --max-new-tokens, or start its "
                "server without a parser of thoughts if these are the answers"
            )


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
        means = [f"{side['prompt_tokens'].mean():,.1f}".removesuffix(".0") for side in sides]
        yield (
            f"{names[0]} counts {means[0]} and {names[1]} {means[1]} tokens in a "
            f"prompt, and other numbers in {unlike} of {len(sides[0])} equal prompts: their "
            "templates, system prompts or first tokens differ, or one cuts prompts"
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
