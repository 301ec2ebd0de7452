"""What ``--dry-run`` prints: the plan, the memory it needs, and how long it may take."""

from __future__ import annotations

from datetime import timedelta

from rich.table import Table

from specbench.analysis.labels import method_labels
from specbench.cli.output import console, note
from specbench.experiment.forecast import Forecast, forecast
from specbench.experiment.plan import Plan

GIB = 2**30


def print_forecast(plan: Plan) -> None:
    """Print a row per cell, then memory and time.

    Raises:
        UsageError: The pair does not fit, or cannot be loaded.
    """
    found = forecast(plan, note)
    for task in plan.tasks:
        mine = [row for row in found.rows if row.task == task.task.name]
        labels = method_labels([row.identity for row in mine])
        table = Table(title=f"{task.task.name} on {plan.pair.name}", title_justify="left")
        table.add_column("method")
        for header in ("N", "samples", "ms/token", "at most"):
            table.add_column(header, justify="right")
        for row, label in zip(mine, labels, strict=True):
            table.add_row(
                label,
                str(row.cell.draft_length or ""),
                str(row.samples),
                f"{1000 * row.pace:.1f}",
                _clock(row.most),
            )
        console().print(table)
    print(_said(plan, found))


def _said(plan: Plan, found: Forecast) -> str:
    free = "" if found.free is None else f" of {found.free / GIB:.1f} GiB free"
    return (
        f"{len(plan)} samples; {found.memory / GIB:.2f}{free}; engine {found.engine}; at most "
        f"{_clock(sum(row.most for row in found.rows))} if no answer ends before its limit, "
        "warm-up and scoring not counted"
    )


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
