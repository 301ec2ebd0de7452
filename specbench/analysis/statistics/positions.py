"""Acceptance by position in the block of drafts, from the rounds of samples.

*Marginal*: of the rounds that proposed an i-th draft, the share that accepted drafts 1 to i.
*Conditional*: of those that also accepted drafts 1 to i - 1, the share that accepted the i-th. The
conditional rates of all positions pool to ``conditional_acceptance_rate``, the marginal ones to
``draft_acceptance_rate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from specbench.analysis.statistics.proportions import proportion_interval
from specbench.analysis.tables.table import Column, Field, Table, TableCell, cell_at, number
from specbench.errors import require
from specbench.runs.frames import CELL, rows_of, typed
from specbench.runs.labels import method_labels
from specbench.runs.records import RECORDS
from specbench.runs.tables import may_be_blank, schema

MARGINAL, CONDITIONAL = "marginal", "conditional"
POSITIONS = schema("positions")
NOTHING_DRAFTED = "no method of these runs drafts: run sd or another one"
NOTES = (
    "marginal: of the rounds that proposed draft i, % that accepted drafts 1 to i.",
    "conditional: of those that accepted drafts 1 to i - 1, % that accepted draft i.",
)


def acceptance_by_position(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return acceptance by position: a row per cell, kind and position, columns ``POSITIONS``.

    The intervals are those of a proportion of rounds, clustered by prompt. A position that no round
    proposed has no row.
    """
    require(len(rounds) > 0, f"{RECORDS} has no decoded sample: give another run")
    drafted = rounds[rounds["proposed"] > 0]
    require(not drafted.empty, NOTHING_DRAFTED)
    drafted = drafted.assign(sample_id=pd.factorize(drafted["sample_id"])[0])  # faster
    rows = [
        (*cell, *row)
        for cell, rounds_of_cell in drafted.groupby(list(CELL), sort=False, dropna=False)
        for row in _rows(rounds_of_cell)
    ]
    frame = pd.DataFrame(rows, columns=list(POSITIONS))
    return typed(frame, POSITIONS, "the rounds", may_be_blank("positions"))


def _rows(rounds: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield kind, position, number of rounds, value, ends of its interval, number of prompts."""
    proposed, accepted = rounds["proposed"].to_numpy(), rounds["accepted"].to_numpy()
    prompts = rounds["sample_id"].to_numpy()
    for kind in (MARGINAL, CONDITIONAL):
        for position in range(1, proposed.max() + 1):
            counted = proposed >= position
            if kind == CONDITIONAL:
                counted &= accepted >= position - 1
            if counted.any():
                estimate = proportion_interval(accepted[counted] >= position, prompts[counted])
                yield kind, position, counted.sum(), *estimate[:4]


def position_tables(table: pd.DataFrame, intervals: bool = False) -> Iterator[Table]:
    """Yield a readable table of each task and setting: methods and kinds down, positions across."""
    several = table["run_id"].nunique() > 1
    keys = ["run_id", "pair", "task", "temperature", "draft_length", "engine", "batch_size"]
    for (run, pair, task, temperature, length, *_), rows in table.groupby(keys, sort=False):
        title = f"Acceptance by position, {task} on {pair}, T = {temperature:g}, N = {length}"
        if several:
            title += f", {run}"
        cells = rows.assign(label=method_labels(rows_of(rows)))
        records = {
            names: {row["position"]: row for row in rows_of(group)}
            for names, group in cells.groupby(["label", "kind"], sort=False)
        }

        def cell(row: dict[str, Any]) -> TableCell:
            value, *ends = (number(100 * row[n], ".1f") for n in ("value", "ci_low", "ci_high"))
            return TableCell(value, f"[{', '.join(ends)}]" if intervals and all(ends) else "")

        fields: list[Field[Any]] = [
            ("method", lambda record: record[0][0]),
            (Column("% accepted", align="left"), lambda record: record[0][1]),
            *(
                (f"{position}", cell_at(position, cell))
                for position in sorted(rows["position"].unique())
            ),
        ]
        yield Table.of(records.items(), fields, title, NOTES, stub=2)
