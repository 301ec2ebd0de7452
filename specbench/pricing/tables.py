"""Rows and readable tables of prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.statistics.estimates import wide
from specbench.analysis.statistics.intervals import bootstrap, estimate, ratio
from specbench.analysis.tables.shown import ENDS
from specbench.analysis.tables.table import Field, Table, number, with_interval
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.policies import Policy
from specbench.pricing.checks import Deviation, PriceCheck
from specbench.pricing.rounds import drafting, visits
from specbench.pricing.scores import Scores
from specbench.runs.frames import rows_of


def priced_rows(
    scores: Scores,
    drafters: Sequence[tuple[DrafterKind, str]],
    policies: Sequence[Policy],
    lengths: Sequence[int],
    by: str = "",
) -> pd.DataFrame:
    """Return a row for each drafter, policy and N, of all texts or of each category.

    ``drafters`` are pairs of a drafter and a rule, and ``by`` is empty or names the column
    ``category``.
    """
    rows: list[dict[str, Any]] = []
    categories = [name.category or "" if by else "" for name in scores.names]
    for drafter, rule in drafters:
        whole = drafting(scores, drafter, rule, max(lengths))
        # With a one-hot q, or drafts that are checked one by one, the rule does not matter.
        alike = drafter.copies or drafter.greedy or rule == "sd"
        label = f"{drafter}" if alike else f"{drafter}, {rule}"
        for length, policy in product(lengths, policies):
            rounds = visits(whole.within(length), policy)
            columns = np.stack([scores.is_token, *rounds], axis=-1).sum(1)
            setting = {"drafter": label, "policy": policy.label, "draft_length": length}
            for category in sorted({*categories}):
                texts = [text for text, name in enumerate(categories) if name == category]
                sums = scores.of(texts).by_prompt(columns[texts])  # [n, 3] by prompt
                totals, n = bootstrap(sums), len(sums)
                figures = {
                    "tokens_per_round": estimate(ratio(totals[:, :2]), n),
                    "drafted_per_round": estimate(ratio(totals[:, [2, 1]]), n),
                }
                category_of = {by: category} if by else {}
                rows.append({**category_of, **setting, **wide(figures), "n": n})
    return pd.DataFrame(rows)


def price_table(rows: pd.DataFrame, title: str, by: str) -> Table:
    """Return a readable table of ``priced_rows``."""

    def tokens_per_round(row: Mapping[Any, Any]) -> str:
        value, low, high = (row[f"tokens_per_round{end}"] for end in ENDS)
        return with_interval(value, low, high, ".3f")

    ends = " [95 %]" if rows[f"tokens_per_round{ENDS[1]}"].notna().any() else ""
    fields: list[Field[Mapping[Any, Any]]] = [
        *([(by, lambda row: row[by])] if by else []),
        ("drafter", lambda row: row["drafter"]),
        ("policy", lambda row: row["policy"]),
        ("N", lambda row: str(row["draft_length"])),
        (f"tokens/round{ends}", tokens_per_round),
        ("drafts/round", lambda row: number(row["drafted_per_round"], ".2f")),
    ]
    return Table.of(rows_of(rows), fields, title, stub=3 + bool(by))


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
