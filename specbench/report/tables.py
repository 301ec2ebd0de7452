"""Cells of runs and their tables: one row per cell, two tables per task and setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.summary import (
    AT_LIMIT,
    QUALITY,
    TOKENS,
    further_metrics,
    less_than_sd,
    selected_summary,
    shown_name,
    shown_scale,
    wide,
)
from specbench.errors import UsageError
from specbench.metrics import shown_metric
from specbench.runs.frames import CELL, Selection, read_samples
from specbench.runs.labels import method_labels
from specbench.table import Cell, Field, Table, number

_Field = Field[dict[Hashable, Any]]


def _measured(name: str, form: str, scale: float = 1.0) -> Callable[[Mapping[Any, Any]], Cell]:
    """Return a function that shows a cell's metric above its interval."""

    def show(cell: Mapping[Any, Any]) -> Cell:
        value, low, high = (
            number(scale * cell.get(name + end, math.nan), form).rstrip(".")
            for end in ("", "_low", "_high")
        )
        return Cell(value, f"{low} to {high}" if value and low else "")

    return show


_METRICS = (
    ("accepted / drafted\n%, pooled", _measured("draft_acceptance_rate", ".1f", 100)),
    ("tokens per round\npooled", _measured("acceptance_length", ".2f")),
    ("time per sample\ns", _measured("seconds_per_sample", "#.3g")),
    ("tokens/s", _measured("tokens_per_second", "#.4g")),
    ("speedup\n× tokens/s", _measured("speedup", ".2f")),
)
_OF_TEXTS = (
    ("output\ntokens", _measured("output_tokens", ".1f")),
    ("output tokens\nless sd's", _measured("output_tokens_less", "+.1f")),
    ("at length limit\n%", _measured("length_limit_rate", ".1f", 100)),
    ("at length limit\nless sd's", _measured("length_limit_rate_less", "+.1f", 100)),
    ("repeated 4-grams\n%", _measured("repetition", ".1f", 100)),
    ("rounds", _measured("rounds", ".1f")),
    (
        "accepted / drafted\n%, sample mean",
        _measured("draft_acceptance_rate_sample_mean", ".1f", 100),
    ),
)
#: Differences from plain SD in the tables; each of the others takes seconds of bootstraps.
_COMPARED = (QUALITY, TOKENS, AT_LIMIT)


def read_cells(
    folders: Sequence[Path],
    selection: Selection = Selection(),  # noqa: B008 (frozen)
) -> tuple[pd.DataFrame, list[str]]:
    """Return one row per selected cell of all runs, and the metrics that only some tasks have.

    The columns are those of ``analysis.summary.wide``, plus ``label`` (the method's name), ``n``
    (the number of prompts) and ``setting`` (the settings shared by the cells of one table).

    Raises:
        UsageError: A run has no readable summary, or nothing in it is selected.
    """
    summary = selected_summary(folders, selection)
    cells = wide(summary)
    with suppress(UsageError):  # a run may lack its samples
        samples = Selection(by=selection.by).of(read_samples(*folders))
        cells = cells.merge(less_than_sd(samples, _COMPARED), on=list(CELL), how="left")
    rows = cells.to_dict("records")
    settings = cells["pair"] + [f", T = {temperature:g}" for temperature in cells["temperature"]]
    if cells["engine"].nunique() > 1:
        settings += ", " + cells["engine"]
    if cells["batch_size"].nunique() > 1:
        settings += ", batch " + cells["batch_size"].astype("str")
    prompts = summary.loc[summary["metric"] == "seconds_per_sample", "n"].to_numpy()
    cells = cells.assign(label=method_labels(rows), n=prompts, setting=settings)
    return cells, further_metrics(summary)


def summary_tables(cells: pd.DataFrame) -> list[Table]:
    """Return a table of quality, acceptance and speed for each task and setting."""
    return [_table(title, rows, [*_quality(rows), *_METRICS]) for title, rows in _parts(cells)]


def text_tables(cells: pd.DataFrame, further: Sequence[str]) -> list[Table]:
    """Return a table of the texts for each task and setting; ``further`` are metrics of them."""
    scores: list[_Field] = [
        (shown_name(name), _measured(name, ".1f", shown_scale(name))) for name in further
    ]
    tables = []
    for title, rows in _parts(cells):
        scale = shown_metric(rows["quality_metric"].iloc[0])[1]
        completed = ("quality of\ncompleted texts", _measured("completed_quality", ".1f", scale))
        tables.append(_table(f"Texts, {title}", rows, [completed, *scores, *_OF_TEXTS]))
    return tables


def _parts(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield title and cells of each task and setting."""
    for (task, setting), rows in cells.groupby(["task", "setting"], sort=False):
        counts = sorted({rows["n"].min(), rows["n"].max()} - {0})
        prompts = f", {' to '.join(map(str, counts))} prompts" if counts else ""
        yield f"{task} on {setting}{prompts}", rows


def _quality(cells: pd.DataFrame) -> list[_Field]:
    quality, scale = shown_metric(cells["quality_metric"].iloc[0])
    return [
        (quality or "quality", _measured("quality", ".1f", scale)),
        ("less sd's\npaired", _measured("quality_less", "+.1f", scale)),
    ]


def _table(title: str, cells: pd.DataFrame, fields: Sequence[_Field]) -> Table:
    several = cells["run_id"].nunique() > 1
    columns: list[_Field] = [
        ("method", lambda cell: cell["label"]),
        ("run", lambda cell: cell["run_id"] if several else ""),
        ("N", lambda cell: str(cell["draft_length"] or "")),
    ]
    return without_constants(Table.of(cells.to_dict("records"), [*columns, *fields], title))


def without_constants(table: Table) -> Table:
    """Return a table without columns that are empty, or equal in all rows that have a value.

    The title names the latter; a column with a single value stays.
    """
    chosen, same = [], []
    for index, (column, *cells) in enumerate(zip(table.columns, *table.rows, strict=True)):
        values = [cell for cell in cells if cell not in ("", Cell())]
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
