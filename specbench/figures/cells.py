"""Cells of a summary as figures take them: set apart, named, and as the data behind a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench.analysis.frames import CELL
from specbench.analysis.labels import method_labels
from specbench.errors import UsageError
from specbench.figures import style

MOST_ROWS = 60  # of a figure with a row per setting


def blocks(
    table: pd.DataFrame, names: Sequence[str] = ("pair", "engine", "batch_size")
) -> list[tuple[str, pd.DataFrame]]:
    """What is drawn apart from each other: the rows of each setting, with its name.

    Args:
        table: Rows with the columns of ``analysis.frames.CELL``.
        names: The columns that make the setting.

    Returns:
        Names, of what differs between settings only, as in ``mini, compile, batch 8``, with rows.
    """
    told = [name for name in names if table[name].nunique() > 1]
    return [
        (", ".join(_in_words(name, rows[name].iloc[0]) for name in told), rows)
        for _, rows in table.groupby(list(names), sort=False)
    ]


def title(task: str, setting: str) -> str:
    """The title of a task's panel in a setting that may have no name."""
    return f"{task} ({setting})" if setting else task


def names(cells: pd.DataFrame, between: str = " ") -> list[str]:
    """The method of each cell as in legends, with its parameters, and what else tells cells apart.

    Draft lengths and runs are told where there are several.

    Args:
        cells: Rows with the columns of ``analysis.frames.CELL``.
        between: What stands between the method and the rest.
    """
    rows = cells.to_dict("records")
    several_lengths = len({row["draft_length"] for row in rows} - {0}) > 1
    several_runs = len({row["run_id"] for row in rows}) > 1
    found = []
    for row, label in zip(rows, method_labels(rows), strict=True):
        rest = [
            label.removeprefix(row["method"]).strip(),
            f"N = {row['draft_length']}" if several_lengths and row["draft_length"] else "",
            row["run_id"] if several_runs else "",
        ]
        told = ", ".join(filter(None, rest))
        found.append(between.join(filter(None, [style.look(row["method"]).label, told])))
    return found


def require_few(rows: int) -> None:
    """Refuse a figure with a row per setting where these are more than fit on any page.

    Raises:
        UsageError: There are more than ``MOST_ROWS``.
    """
    if rows > MOST_ROWS:
        raise UsageError(
            f"The runs hold {rows} settings of methods, a row of the figure each, and it has place "
            f"for {MOST_ROWS}; choose some by --method, --task or --draft-length."
        )


def data(table: pd.DataFrame, *more: str, **drawn: str) -> pd.DataFrame:
    """The data behind a figure, a row per row of a table.

    Args:
        table: A wide table with the columns of ``analysis.frames.CELL``.
        *more: Further columns to keep.
        **drawn: What is drawn, by the name that it gets: a column, with an optional scale in front.

    Returns:
        These columns, those of ``drawn`` with their ends as ``<name>_low`` and ``<name>_high``.
    """
    columns = {
        name + end: values
        for name, expression in drawn.items()
        for end, values in zip(("", "_low", "_high"), style.values(table, expression), strict=True)
    }
    return table[[*CELL, *more]].assign(**columns)


def _in_words(name: str, value: Any) -> str:
    return f"batch {value}" if name == "batch_size" else str(value)
