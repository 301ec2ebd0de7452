"""Cells of runs and their tables: one row per cell, two tables per task and setting."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pandas as pd

from specbench.analysis.results import Results
from specbench.analysis.scores import AT_LIMIT, COMPLETED, QUALITY, REPETITION, TOKENS
from specbench.analysis.summary import further_metrics
from specbench.errors import UsageError
from specbench.runs.shown import ShownFigure, shown, shown_score, temperature_text
from specbench.runs.table import Field, Table, TableCell

_Field = Field[dict[Hashable, Any]]

_ACCEPTANCE = "draft_acceptance_rate"
_MEASURED = (_ACCEPTANCE, "acceptance_length", "seconds_per_sample", "tokens_per_second", "speedup")
#: Differences from plain SD in the tables; each of the others takes seconds of bootstraps.
_COMPARED = (QUALITY, TOKENS, AT_LIMIT)


def report_cells(results: Results) -> pd.DataFrame:
    """Return the frame of cells with differences from plain SD, and ``setting``.

    The setting is that shared by the cells of one table.

    Raises:
        UsageError: A run has no readable summary, or nothing in it is selected.
    """
    cells = results.cells
    with suppress(UsageError):  # a run may lack its samples
        cells = results.cells_beside_sd(_COMPARED)
    settings = cells["pair"] + ", " + cells["temperature"].map(temperature_text)
    if cells["engine"].nunique() > 1:
        settings += ", " + cells["engine"]
    if cells["batch_size"].nunique() > 1:
        settings += ", batch " + cells["batch_size"].astype("str")
    return cells.assign(setting=settings)


def summary_tables(cells: pd.DataFrame) -> list[Table]:
    """Return a table of quality, acceptance and speed for each task and setting."""
    tables = []
    for title, rows in _parts(cells):
        quality = shown(QUALITY, rows["quality_metric"].iloc[0])
        figures = [quality, quality.less(), *map(shown, _MEASURED)]
        tables.append(_table(title, rows, figures))
    return tables


def text_tables(cells: pd.DataFrame) -> list[Table]:
    """Return a table of the texts for each task and setting."""
    tokens, limit = shown(TOKENS), shown(AT_LIMIT)
    figures = [
        *map(shown_score, further_metrics(cells)),
        tokens,
        tokens.less(),
        limit,
        limit.less(),
    ]
    figures += map(shown, (REPETITION, "rounds", f"{_ACCEPTANCE}_sample_mean"))
    return [
        _table(
            f"Texts, {title}",
            rows,
            [shown(COMPLETED, rows["quality_metric"].iloc[0]), *figures],
        )
        for title, rows in _parts(cells)
    ]


def prompts_of(cells: pd.DataFrame) -> pd.Series:
    """Return the number of prompts of each cell; n of times may count blocks of them."""
    return cells[["seconds_per_sample_n", "output_tokens_n"]].max(axis=1)


def _parts(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield title and cells of each task and setting."""
    for (task, setting), rows in cells.groupby(["task", "setting"], sort=False):
        n = prompts_of(rows)
        counts = sorted({n.min(), n.max()} - {0})
        prompts = f", {' to '.join(f'{count:.0f}' for count in counts)} prompts" if counts else ""
        yield f"{task} on {setting}{prompts}", rows


def _table(title: str, cells: pd.DataFrame, figures: Sequence[ShownFigure]) -> Table:
    several = cells["run_id"].nunique() > 1
    columns: list[_Field] = [
        ("method", lambda cell: cell["label"]),
        ("run", lambda cell: cell["run_id"] if several else ""),
        ("N", lambda cell: str(cell["draft_length"] or "")),
        *(("\n".join(filter(None, [f.heading, f.unit])), f.cell) for f in figures),
    ]
    return without_constants(Table.of(cells.to_dict("records"), columns, title))


def without_constants(table: Table) -> Table:
    """Return a table without columns that are empty, or equal in all rows that have a value.

    The title names the latter; a column with a single value stays.
    """
    chosen, same = [], []
    for index, (column, *cells) in enumerate(zip(table.columns, *table.rows, strict=True)):
        values = [cell for cell in cells if cell not in ("", TableCell())]
        if not index or len(values) == 1 or len({*values}) > 1:
            chosen.append(index)
        elif values:
            value = values[0] if isinstance(values[0], str) else values[0].text
            same.append(f"{column.heading} {value}")
    shared = "; the same in all rows: " + ", ".join(same) if same else ""
    return replace(
        table,
        title=(table.title + shared).replace("\n", " "),
        columns=[table.columns[index] for index in chosen],
        rows=[[row[index] for index in chosen] for row in table.rows],
    )
