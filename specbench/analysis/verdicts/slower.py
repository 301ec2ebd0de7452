"""Why drafts make a method slower: its seconds and its rounds beside those of no speculation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from specbench.analysis.statistics.blocks import by_time_unit
from specbench.analysis.statistics.estimates import SECONDS, SPEED, contrast, term
from specbench.analysis.statistics.summary import baseline_of
from specbench.analysis.tables.table import number, percent
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.frames import CELL, first_decodes, rows_of
from specbench.runs.labels import method_labels

FEWEST = 3  # prompts of a remark
NOTICED = 0.98  # ratio of tokens/s from which a difference is named
TOKENS = 1000  # whose seconds are told


def slower_methods(samples: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield a run's name and a sentence for each setting of drafts that is slower than none."""
    cells = [cell for _, cell in samples.groupby(list(CELL), sort=False, dropna=False)]
    rows = rows_of(pd.DataFrame([cell.iloc[0] for cell in cells]))
    slower: dict[tuple[Any, ...], dict[str, str]] = {}
    alone = {
        baseline_of(row): cell
        for row, cell in zip(rows, cells, strict=True)
        if row["method"] == AUTOREGRESSIVE
    }
    for row, label, cell in zip(rows, method_labels(rows), cells, strict=True):
        plain, drafted = alone.get(baseline_of(row)), first_decodes(cell)
        if plain is None or not row["draft_length"] or drafted.empty:
            continue
        if reason := why_slower(drafted, plain):
            key = tuple(row[name] for name in ("run_id", "task", "draft_length", "batch_size"))
            slower.setdefault(key, {})[label] = reason
    for (run, task, length, batch_size), reasons in slower.items():
        label, *further = reasons
        others = further if len(further) < 2 else [f"{len(further)} more"]
        names = " and ".join([label, *others])
        yield (
            run,
            f"{task}: {names} with N = {length} {'are' if further else 'is'} slower than no "
            f"speculation{f' in batches of {batch_size}' if batch_size > 1 else ''}, because"
            f"{f' with {label}' if further else ''} {reasons[label]}",
        )


def why_slower(arm: pd.DataFrame, plain: pd.DataFrame, of: str = "without drafts") -> str:
    """Say where the seconds of one side go, if it writes fewer tokens/s than another.

    The samples of the other, which ``of`` names, should have no drafts. The sentence has no
    subject; it is empty if the side is not slower, or it is unknown.
    """
    sides = [by_time_unit(side) for side in (arm, plain)]
    prompts = {*arm["sample_id"]} & {*plain["sample_id"]}
    if len(prompts) < FEWEST or any(term(side, SECONDS).isna().any() for side in (arm, plain)):
        return ""
    if not {*sides[0]["sample_id"]} & {*sides[1]["sample_id"]}:  # no whole block
        sides = [arm, plain]
    ratio = contrast(sides[0], sides[1], SPEED)
    if not 0 < ratio.value < NOTICED or ratio.high >= 1:
        return ""
    arm, plain = (side[side["sample_id"].isin(prompts)] for side in (arm, plain))
    return (
        f"{TOKENS:,} tokens take {_seconds(arm, drafts=True)}, and {_seconds(plain, drafts=False)} "
        f"{of}{_rounds(arm, plain, of)}"
    )


def _seconds(side: pd.DataFrame, *, drafts: bool) -> str:
    """Return the seconds of so many tokens: those until the first token, and all others."""
    first_tokens = side.get("first_token_seconds", pd.Series(dtype=float)).notna().any()
    in_rounds = drafts and side["rounds"].notna().all()
    scale = TOKENS / side["output_tokens"].sum()
    prefill, decode = (scale * side[f"{name}_seconds"].sum() for name in ("prefill", "decode"))
    digits = max(0, 2 - math.floor(math.log10(prefill + decode)))
    total, first = round(prefill + decode, digits), round(prefill, digits)
    return (
        f"{total:.{digits}f} s ({'until the first token' if first_tokens else 'prefill'} "
        f"{first:.{digits}f} s, {'rounds' if in_rounds else 'later tokens'} "
        f"{total - first:.{digits}f} s)"
    )


def _rounds(arm: pd.DataFrame, plain: pd.DataFrame, of: str) -> str:
    """Say what a round takes and gives, if the rounds are known."""
    steps = plain["rounds"].fillna(plain["output_tokens"] - 1).sum()  # of a server the latter
    if arm["rounds"].isna().any() or not (arm["proposed"].sum() and steps):
        return ""
    step = plain["decode_seconds"].sum() / steps
    takes = arm["decode_seconds"].sum() / arm["rounds"].sum() / step
    gives = (arm["acceptance_length"] * arm["rounds"]).sum() / arm["rounds"].sum()
    accepted = percent(arm["accepted"].sum() / arm["proposed"].sum(), ".0f")
    return (
        f"; a round takes as long as {number(takes, '.1f')} steps {of} and gives "
        f"{number(gives, '.1f')} tokens, since {accepted} of the drafts are accepted"
    )
