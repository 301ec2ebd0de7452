"""The cells of runs as a report groups them: by task and by what a figure has no axis for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.analysis.frames import read_summary
from specbench.analysis.labels import method_labels
from specbench.analysis.selection import Selection
from specbench.analysis.summary import further_metrics, wide
from specbench.metrics import METRICS

Cell = Mapping[Any, Any]


def read_cells(
    folders: Sequence[Path],
    selection: Selection = Selection(),  # noqa: B008 (frozen)
) -> tuple[list[dict[Any, Any]], list[str]]:
    """Return a row per cell selected of all runs, and the metrics that only some tasks have.

    A row has the columns of ``analysis.summary.wide``, ``label``, what its method is called, and
    ``n``, its prompts.

    Raises:
        UsageError: A run has no readable summary, or nothing of what is selected.
    """
    summary = selection.of(read_summary(*folders))
    cells: list[dict[Any, Any]] = wide(summary).to_dict("records")
    prompts = summary.loc[summary["metric"] == "seconds_per_sample", "n"]
    for cell, label, n in zip(cells, method_labels(cells), prompts, strict=True):
        cell |= {"label": label, "n": n}
    return cells, further_metrics(summary)


def distinct(cells: Sequence[Cell], name: str) -> list[Any]:
    """The values of a column in the order in which they appear."""
    return list(dict.fromkeys(cell[name] for cell in cells))


def setting(cell: Cell, cells: Sequence[Cell]) -> str:
    """Name what is alike for all that is shown together: the pair, and what else varies.

    Args:
        cell: One of them.
        cells: All that a report shows.
    """
    parts = [cell["pair"], f"T = {cell['temperature']:g}"]
    if len(distinct(cells, "engine")) > 1:
        parts.append(cell["engine"])
    if len(distinct(cells, "batch_size")) > 1:
        parts.append(f"batch of {cell['batch_size']}")
    return ", ".join(parts)


def scale(cell: Cell) -> float:
    """The factor from a cell's quality to the number shown."""
    metric = METRICS.get(cell["quality_metric"])
    return metric.scale if metric else 1.0
