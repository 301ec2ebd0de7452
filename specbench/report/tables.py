"""Cells of runs, and summary tables of them: a row per cell, a table per task and setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from specbench.analysis.frames import Selection, read_summary
from specbench.analysis.labels import method_labels
from specbench.analysis.summary import further_metrics, shown_name, shown_scale, wide
from specbench.metrics import METRICS
from specbench.table import Cell, Column, Table, drop_empty, number


class _Metric(NamedTuple):
    """A column of the tables; ``heading`` has the name and, below it, the unit."""

    name: str
    heading: str
    form: str
    scale: float = 1.0


_METRICS = (
    _Metric("draft_acceptance_rate", "accepted / drafted\n%, pooled", ".1f", 100),
    _Metric("draft_acceptance_rate_sample_mean", "accepted / drafted\n%, sample mean", ".1f", 100),
    _Metric("acceptance_length", "tokens per round\npooled", ".2f"),
    _Metric("seconds_per_sample", "time per sample\ns", "#.3g"),
    _Metric("tokens_per_second", "tokens/s", "#.4g"),
    _Metric("speedup", "speedup\n× tokens/s", ".2f"),
    _Metric("output_tokens", "output\ntokens", ".1f"),
    _Metric("rounds", "rounds", ".1f"),
    _Metric("length_limit_rate", "at length limit\n%", ".1f", 100),
)


def read_cells(
    folders: Sequence[Path],
    selection: Selection = Selection(),  # noqa: B008 (frozen)
) -> tuple[pd.DataFrame, list[str]]:
    """Return a row per selected cell of all runs, and the metrics that only some tasks have.

    The columns are those of ``analysis.summary.wide``, ``label``, the method's name, ``n``, the
    number of prompts, and ``setting``, what is alike for all cells shown together.

    Raises:
        UsageError: A run has no readable summary, or nothing of what is selected.
    """
    summary = selection.of(read_summary(*folders))
    cells = wide(summary)
    rows = cells.to_dict("records")
    settings = cells["pair"] + [f", T = {temperature:g}" for temperature in cells["temperature"]]
    if cells["engine"].nunique() > 1:
        settings += ", " + cells["engine"]
    if cells["batch_size"].nunique() > 1:
        settings += ", batch " + cells["batch_size"].astype("str")
    prompts = summary.loc[summary["metric"] == "seconds_per_sample", "n"].to_numpy()
    cells = cells.assign(label=method_labels(rows), n=prompts, setting=settings)
    return cells, further_metrics(summary)


def summary_tables(cells: pd.DataFrame, further: Sequence[str]) -> list[Table]:
    """Return the tables of all cells, in the order of tasks, with metrics beside quality."""
    several = cells["run_id"].nunique() > 1
    return [
        _table(f"{task} on {setting}", rows, further, several)
        for (task, setting), rows in cells.groupby(["task", "setting"], sort=False)
    ]


def _table(title: str, cells: pd.DataFrame, further: Sequence[str], several: bool) -> Table:
    quality = METRICS.get(cells["quality_metric"].iloc[0])
    name, scale = (quality.unit, quality.scale) if quality else ("quality", 1.0)
    columns = [
        _Metric("quality", name, ".1f", scale),
        *_METRICS,
        *(_Metric(name, shown_name(name), ".1f", shown_scale(name)) for name in further),
    ]
    counts = sorted({cells["n"].min(), cells["n"].max()} - {0})
    prompts = f", {' to '.join(map(str, counts))} prompts" if counts else ""
    rows = [
        [
            row["label"],
            row["run_id"] if several else "",
            str(row["draft_length"] or ""),
            *(_cell(row, column) for column in columns),
        ]
        for _, row in cells.iterrows()
    ]
    headings = ["method", "run", "N", *(column.heading for column in columns)]
    return drop_empty(Table(title + prompts, list(map(Column, headings)), rows))


def _cell(row: pd.Series, column: _Metric) -> Cell:
    value, low, high = (
        number(column.scale * row[column.name + end], column.form).rstrip(".")
        for end in ("", "_low", "_high")
    )
    return Cell(value, f"{low} to {high}" if value and low else "")
