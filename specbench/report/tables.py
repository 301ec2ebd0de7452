"""Cells of runs and their summary tables: one row per cell, one table per task and setting."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.frames import CELL, Selection, read_samples
from specbench.analysis.labels import method_labels
from specbench.analysis.summary import (
    further_metrics,
    less_than_sd,
    selected_summary,
    shown_name,
    shown_scale,
    wide,
)
from specbench.errors import UsageError
from specbench.metrics import shown_metric
from specbench.table import Cell, Field, Table, drop_empty, number


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
    (
        "accepted / drafted\n%, sample mean",
        _measured("draft_acceptance_rate_sample_mean", ".1f", 100),
    ),
    ("tokens per round\npooled", _measured("acceptance_length", ".2f")),
    ("time per sample\ns", _measured("seconds_per_sample", "#.3g")),
    ("tokens/s", _measured("tokens_per_second", "#.4g")),
    ("speedup\n× tokens/s", _measured("speedup", ".2f")),
    ("output\ntokens", _measured("output_tokens", ".1f")),
    ("rounds", _measured("rounds", ".1f")),
    ("at length limit\n%", _measured("length_limit_rate", ".1f", 100)),
    ("repeated 4-grams\n%", _measured("repetition", ".1f", 100)),
    ("output tokens\nless sd's", _measured("output_tokens_less", "+.1f")),
    ("at length limit\nless sd's", _measured("length_limit_rate_less", "+.1f", 100)),
    ("repeated 4-grams\nless sd's", _measured("repetition_less", "+.1f", 100)),
)


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
        cells = cells.merge(less_than_sd(samples), on=list(CELL), how="left")
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
    """Return one table per task and setting; ``further`` are metrics other than quality."""
    several = cells["run_id"].nunique() > 1
    return [
        _table(f"{task} on {setting}", rows, further, several)
        for (task, setting), rows in cells.groupby(["task", "setting"], sort=False)
    ]


def _table(title: str, cells: pd.DataFrame, further: Sequence[str], several: bool) -> Table:
    quality, scale = shown_metric(cells["quality_metric"].iloc[0])
    counts = sorted({cells["n"].min(), cells["n"].max()} - {0})
    prompts = f", {' to '.join(map(str, counts))} prompts" if counts else ""
    fields: list[Field[dict[Hashable, Any]]] = [
        ("method", lambda cell: cell["label"]),
        ("run", lambda cell: cell["run_id"] if several else ""),
        ("N", lambda cell: str(cell["draft_length"] or "")),
        (quality or "quality", _measured("quality", ".1f", scale)),
        ("less sd's\npaired", _measured("quality_less", "+.1f", scale)),
        ("of completed\ntexts", _measured("completed_quality", ".1f", scale)),
        ("less sd's\npaired", _measured("completed_quality_less", "+.1f", scale)),
        *_METRICS,
        *((shown_name(name), _measured(name, ".1f", shown_scale(name))) for name in further),
    ]
    return drop_empty(Table.of(cells.to_dict("records"), fields, title + prompts))
