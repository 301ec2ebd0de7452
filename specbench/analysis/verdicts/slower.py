"""Why drafts make a method slower: where its seconds go, and those of no speculation.

The parts of a side add up to its time. Texts of a batch share the time of each round, so a share
grows when other texts have ended: *ends of a batch* are the seconds beyond those that the rounds
would have taken at the share of the text that ended first, whose rounds all had a full batch.
"""

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
_BATCH = ["block", "turn", "repeat"]


def slower_methods(samples: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield a run's name and a sentence for each setting of drafts that is slower than none.

    Args:
        samples: Samples of runs, with those of ``timings.csv``.
    """
    cells = [cell for _, cell in samples.groupby(list(CELL), sort=False, dropna=False)]
    first = pd.DataFrame([cell.iloc[0] for cell in cells])
    slower: dict[tuple[Any, ...], dict[str, str]] = {}
    alone = {
        baseline_of(row): cell
        for row, cell in zip(rows_of(first), cells, strict=True)
        if row["method"] == AUTOREGRESSIVE
    }
    for row, label, cell in zip(rows_of(first), method_labels(rows_of(first)), cells, strict=True):
        plain, drafted = alone.get(baseline_of(row)), first_decodes(cell)
        if plain is None or not row["draft_length"] or drafted.empty:
            continue
        if reason := why_slower(drafted, plain):
            key = tuple(row[name] for name in ("run_id", "task", "draft_length", "batch_size"))
            slower.setdefault(key, {})[label] = reason
    for (run, task, length, batch_size), reasons in slower.items():
        label, *further = reasons
        names = " and ".join(
            [label, *further] if len(further) < 2 else [label, f"{len(further)} more"]
        )
        yield (
            run,
            f"{task}: {names} with N = {length} {'are' if further else 'is'} slower than no "
            f"speculation{f' in batches of {batch_size}' if batch_size > 1 else ''}, because"
            f"{f' with {label}' if further else ''} {reasons[label]}",
        )


def why_slower(arm: pd.DataFrame, plain: pd.DataFrame, of: str = "without drafts") -> str:
    """Say where the seconds of one side go, if it writes fewer tokens/s than another.

    Args:
        arm: Samples of one side.
        plain: Samples of the other, which should have no drafts.
        of: Names the other.

    Returns:
        A sentence without its subject; empty if the side is not slower, or it is unknown.
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
        f"{TOKENS:,} tokens take {_told(arm, drafts=True)}, and {_told(plain, drafts=False)} "
        f"{of}{_rounds(arm, plain, of)}"
    )


def _told(side: pd.DataFrame, *, drafts: bool) -> str:
    """Return the seconds of so many tokens, and the parts that add up to them."""
    first_tokens = side.get("first_token_seconds", pd.Series(dtype=float)).notna().any()
    parts = {"until the first token" if first_tokens else "prefill": side["prefill_seconds"].sum()}
    named = {
        "drafts": "draft_seconds",
        "verification" if drafts else "passes": "verify_seconds",
        "acceptance tests" if drafts else "token draws": "accept_seconds",
    }
    recorded = side[[*named.values()]].notna().all(axis=None)
    decode, ends = side["decode_seconds"].sum(), _ends(side) if recorded else 0.0
    share = 1 - ends / decode if decode else 1.0  # of the rounds' parts, which have their ends
    parts |= {name: share * side[column].sum() for name, column in named.items() if recorded}
    parts |= {"ends of a batch": ends}
    rest = decode + side["prefill_seconds"].sum() - sum(parts.values())
    scale = TOKENS / side["output_tokens"].sum()
    total = scale * (rest + sum(parts.values()))
    digits = max(0, 2 - math.floor(math.log10(total)))
    total = round(total, digits)
    in_rounds = drafts and side["rounds"].notna().all()
    parts["others" if recorded else "rounds" if in_rounds else "later tokens"] = rest
    rounded = {name: round(scale * seconds, digits) for name, seconds in parts.items()}
    largest = max(parts, key=lambda name: parts[name])  # where rounding is noticed least
    rounded[largest] += total - sum(rounded.values())
    listed = [f"{value:.{digits}f} {name}" for name, value in rounded.items() if value > 0]
    return f"{total:.{digits}f} s ({' + '.join(listed)})"


def _ends(side: pd.DataFrame) -> float:
    """Return the seconds by which texts of a batch waited in rounds that others had left."""
    if "block" not in side or side["block"].isna().all() or side["rounds"].isna().any():
        return 0.0
    seconds = 0.0
    for _, batch in side[side["rounds"] > 0].groupby(_BATCH, dropna=False):
        first = batch[batch["rounds"] == batch["rounds"].min()]
        share = first["decode_seconds"].sum() / first["rounds"].sum()
        seconds += max(0.0, batch["decode_seconds"].sum() - share * batch["rounds"].sum())
    return seconds


def _rounds(arm: pd.DataFrame, plain: pd.DataFrame, of: str) -> str:
    """Say what a round takes and gives, if the rounds are known."""
    steps = (plain["output_tokens"] - 1).sum()
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
