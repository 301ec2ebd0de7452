"""Rows and readable tables of prices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.intervals import Interval, bootstrap, estimate, ratio
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.policies import POLICIES, Floats, Policy
from specbench.pricing.checks import Deviation, PriceCheck
from specbench.pricing.counts import counted_label, priced_counts
from specbench.pricing.pricing import DRAFT_COST, drafter_label, drafting, visits
from specbench.pricing.scores import Scores
from specbench.runs.shown import ENDS
from specbench.runs.table import Field, Table, number, with_interval

PLACES = (0, 16, 32, 64, 128, 256, 512, 1024)  # tokens before each part of a text
EVERYWHERE, PLACE = "", "place"


def priced_rows(
    scores: Scores,
    drafters: Sequence[tuple[DrafterKind, str]],
    policies: Sequence[Policy],
    lengths: Sequence[int],
    by: str = EVERYWHERE,
    first: int = 0,
    cost: float = DRAFT_COST,
) -> pd.DataFrame:
    """Return a row for each part of the texts, drafter, policy and N.

    ``drafters`` are pairs of a drafter and a rule. The regret is the expected time per token over
    the least possible, less 1, if a draft of the model takes ``cost`` times a target pass.
    """
    steps = np.arange(max(lengths) + 1.0)
    tokens = np.where(np.arange(scores.tokens.shape[1]) < first, 0, scores.is_token)
    rows = []
    for drafter, rule in drafters:
        seconds = 1 + cost * steps * (not drafter.copies)
        whole = drafting(scores, drafter, rule, max(lengths), seconds)
        for length in lengths:
            rounds = whole.within(length)
            least = visits(rounds, POLICIES["oracle"], first).seconds
            for policy in policies:
                columns = np.stack([tokens, *visits(rounds, policy, first), least], axis=-1)
                setting = {"drafter": drafter_label(drafter, rule), "policy": policy.label}
                rows += [
                    {**part, **setting, "draft_length": length, **_figures(sums)}
                    for part, sums in _parts(scores, columns, by)
                ]
    return pd.DataFrame(rows)


def counts_rows(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row for each N of the price of a cell's rounds; intervals contain their bounds."""
    label = counted_label(records)
    likely, least, most = (
        pd.DataFrame(
            {
                **{"drafter": label, "policy": priced.policy, "draft_length": length},
                **_figures(np.column_stack([priced.tokens, *sums])),
            }
            for length, *sums in zip(priced.lengths, priced.rounds.T, priced.drafted.T, strict=True)
        )
        for priced in priced_counts(records)
    )
    low, high = (f"tokens_per_round{end}" for end in ENDS[1:])
    return likely.assign(**{low: least[low], high: most[high]})


def _parts(scores: Scores, columns: Floats, by: str) -> Iterator[tuple[dict[str, str], Floats]]:
    """Yield the parts of texts with the columns ``[B, T, 5]`` summed by prompt."""
    if by == PLACE:
        longest = int(scores.length.max())
        for start, end in pairwise([*(place for place in PLACES if place < longest), longest]):
            part = columns[:, start:end, :3].sum(1)  # rounds reach into the next part, so no times
            yield {by: f"{start + 1} to {end}"}, scores.by_prompt(part)
        return
    categories = [name.category or "" if by else "" for name in scores.names]
    for category in sorted({*categories}):
        rows = [row for row, name in enumerate(categories) if name == category]
        part = scores.of(rows).by_prompt(columns[rows].sum(1))
        yield {by: category} if by else {}, part


def _figures(sums: Floats) -> dict[str, float]:
    """Return figures of sums ``[n, 3 or 5]``: tokens, rounds, drafted, seconds, least seconds."""
    totals, n = bootstrap(sums), len(sums)
    values = {
        "tokens_per_round": ratio(totals[:, :2]),
        "drafted_per_round": ratio(totals[:, [2, 1]]),
    }
    if totals.shape[1] > 3:
        values["regret"] = ratio(totals[:, 3:]) - 1
    columns: dict[str, float] = {}
    for name, value in values.items():
        columns |= ends_of(name, estimate(value, n))
    return {**columns, "n": n}


def ends_of(name: str, interval: Interval) -> dict[str, float]:
    """Return the columns of a figure with its interval."""
    return dict(zip((f"{name}{end}" for end in ENDS), interval[:3], strict=True))


def price_table(rows: pd.DataFrame, title: str, by: str, cost: float = 0) -> Table:
    """Return a readable table of ``priced_rows``, or of ``counts_rows``."""

    def interval_of(name: str, form: str, scale: float = 1) -> Callable[[Mapping[Any, Any]], str]:
        def cell(row: Mapping[Any, Any]) -> str:
            value, low, high = (scale * row[f"{name}{end}"] for end in ENDS)
            return with_interval(value, low, high, form)

        return cell

    ends = " [95 %]" if rows[f"tokens_per_round{ENDS[1]}"].notna().any() else ""
    fields: list[Field[Mapping[Any, Any]]] = [
        *([(by, lambda row: row[by])] if by else []),
        ("drafter", lambda row: row["drafter"]),
        ("policy", lambda row: row["policy"]),
        ("N", lambda row: str(row["draft_length"])),
        (f"tokens/round{ends}", interval_of("tokens_per_round", ".3f")),
        ("drafts/round", lambda row: number(row["drafted_per_round"], ".2f")),
    ]
    notes = []
    if "regret" in rows:
        fields.append((f"over least time % (c = {cost:.2g})", interval_of("regret", ".1f", 100)))
        notes.append(
            "over least time: expected time per token over that of the oracle, which knows the "
            "text, if a draft of the model takes c of a target pass."
        )
    return Table.of(rows.to_dict("records"), fields, title, notes, stub=3 + bool(by))


def comparison_table(comparisons: Sequence[PriceCheck], title: str) -> Table:
    """Return a table of prices beside recorded rounds."""
    fields: list[Field[PriceCheck]] = [
        ("cell", lambda row: row.label),
        ("priced", lambda row: with_interval(*row.predicted[:3], ".3f")),
        ("recorded", lambda row: with_interval(*row.measured[:3], ".3f")),
        ("difference", lambda row: with_interval(*row.difference[:3], "+.3f")),
    ]
    return Table.of(comparisons, fields, title)


def deviation_table(deviations: Sequence[Deviation], title: str) -> Table:
    """Return a table of what must be 0 for texts of the target."""
    fields: list[Field[Deviation]] = [
        ("mean over tokens", lambda row: row.name),
        ("value", lambda row: number(row.mean, "+.4f")),
        ("standard errors", lambda row: number(row.errors, "+.1f")),
    ]
    return Table.of(deviations, fields, title)
