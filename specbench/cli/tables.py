"""The table of a run, read from its summary on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from specbench.analysis.frames import read_summary
from specbench.analysis.labels import method_labels
from specbench.analysis.scores import shown_name, shown_scale
from specbench.analysis.summary import further_metrics, wide
from specbench.analysis.transfer import fields, headings, shown_head
from specbench.cli.output import console
from specbench.cli.sheets import Sheet, print_text, with_interval
from specbench.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

NO_BASELINE = "No tokens/s over those of autoregressive, which these runs do not have."

# Header and form of the figures that a lossy rule may change beside quality.
_LENGTHS = {
    "output_tokens": ("tokens", ".1f"),
    "rounds": ("rounds", ".1f"),
    "length_limit_rate": ("ended by limit", ".1%"),
}


def print_run(folder: Path) -> None:
    """Print one table per task: a row per cell, in the order in which the cells ran.

    A second table has the metrics beyond the one that stands for quality, and what else a lossy
    rule may change: the texts' length, their rounds, and how many the limit on new tokens ended.

    Raises:
        UsageError: The folder holds no readable summary.
    """
    summary = read_summary(folder)
    cells: list[Any] = wide(summary).to_dict("records")
    for cell, label in zip(cells, method_labels(cells), strict=True):
        cell["label"] = label
    prompts = _prompts(summary)
    for task in dict.fromkeys(cell["task"] for cell in cells):
        mine = [cell for cell in cells if cell["task"] == task]
        further = [
            name for name in further_metrics(summary) if any(c[name] == c[name] for c in mine)
        ]
        print_text([_task_sheet(task, mine, prompts[task]), _further_sheet(task, mine, further)])


def print_transfer(table: pd.DataFrame) -> None:
    """Print a transfer table: heads down, tasks across, quality over acceptance in each field."""
    shown = Table(
        title=f"Transfer on {table['pair'].iloc[0]}: quality over accepted / drafted, each [95 %]",
        title_justify="left",
        show_lines=True,
    )
    shown.add_column("trained on", no_wrap=True)
    for heading in headings(table).values():
        shown.add_column(heading, justify="right")
    for head, row in fields(table).items():
        shown.add_row(shown_head(head), *("\n".join(lines) for lines in row.values()))
    console().print(shown)


def _prompts(summary: pd.DataFrame) -> dict[str, str]:
    """How many prompts each task has, and how many of them were scored where that is fewer."""
    found = {}
    for task, rows in summary.groupby("task", sort=False):
        counts = rows.groupby("metric")["n"].max()
        n, scored = counts.max(), counts.get("quality", counts.max())
        partly = f", quality of {scored} of them" if scored < n else ""
        found[str(task)] = f"n = {n}{partly}"
    return found


def _task_sheet(task: str, cells: list[dict[str, Any]], prompts: str) -> Sheet:
    metric = METRICS.get(cells[0]["quality_metric"])
    compared = any(cell["speedup"] == cell["speedup"] for cell in cells)
    header = ["method", "N", "accepted /\ndrafted", "tokens /\nround", "tokens/s"]
    header += ["tokens/s\n/ AR's"] * compared
    if metric:
        header.insert(2, f"{metric.unit}\n[95 %]")
    rows = []
    for cell in cells:
        row = [
            *_name(cell),
            _number(cell, "draft_acceptance_rate", ".1%"),
            _number(cell, "acceptance_length", ".2f"),
            _pace(cell["tokens_per_second"]),
            *[_number(cell, "speedup", ".2f")] * compared,
        ]
        if metric:
            row.insert(2, _with_interval(cell, "quality", metric.scale))
        rows.append(row)
    notes = () if compared else (NO_BASELINE,)
    return Sheet(f"{task} on {cells[0]['pair']}, {prompts}", header, rows, notes=notes)


def _further_sheet(task: str, cells: list[dict[str, Any]], metrics: Sequence[str]) -> Sheet:
    scores = [f"{shown_name(name)} [95 %]" for name in metrics]
    rows = [
        [
            *_name(cell),
            *(_with_interval(cell, name, shown_scale(name)) for name in metrics),
            *(_number(cell, name, form) for name, (_, form) in _LENGTHS.items()),
        ]
        for cell in cells
    ]
    header = ["method", "N", *scores, *(header for header, _ in _LENGTHS.values())]
    return Sheet(f"{task}: further metrics", header, rows)


def _name(cell: Mapping[str, Any]) -> list[str]:
    return [cell["label"], str(cell["draft_length"] or "")]


def _pace(value: float) -> str:
    """Tokens per second, to three digits below 100."""
    return "" if value != value else f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def _number(cell: Mapping[str, Any], name: str, form: str) -> str:
    value = cell[name]
    return "" if value != value else f"{value:{form}}"


def _with_interval(cell: Mapping[str, Any], name: str, scale: float) -> str:
    value, low, high = (scale * cell[name + end] for end in ("", "_low", "_high"))
    return with_interval(value, low, high, ".1f")
