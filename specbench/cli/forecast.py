"""What ``--dry-run`` prints: the plan, the memory it needs, and how long it may take."""

from __future__ import annotations

from datetime import timedelta

from specbench.analysis.labels import method_labels
from specbench.cli.output import print_table
from specbench.experiment.forecast import forecast
from specbench.experiment.plan import Plan
from specbench.table import Column, Table

GIB = 2**30
COLUMNS = [Column(heading) for heading in ("method", "N", "samples", "ms/token", "at most")]


def print_forecast(plan: Plan) -> None:
    """Print a row per cell, then memory and time.

    Raises:
        UsageError: The pair does not fit, or cannot be loaded.
    """
    found = forecast(plan)
    for task in plan.tasks:
        cells = [cell for cell in found.cells if cell.step.plan is task]
        labels = method_labels([plan.identify(cell.step, found.engine) for cell in cells])
        rows = [
            (
                label,
                str(cell.step.cell.draft_length or ""),
                str(cell.samples),
                f"{1000 * cell.pace:.1f}",
                _clock(cell.most),
            )
            for cell, label in zip(cells, labels, strict=True)
        ]
        print_table(Table(f"{task.task.name} on {plan.pair.name}", COLUMNS, rows))
    free = "" if found.free is None else f" of {found.free / GIB:.1f} GiB free"
    print(
        f"{len(plan)} samples; {found.memory / GIB:.2f}{free}; engine {found.engine}; at most "
        f"{_clock(sum(cell.most for cell in found.cells))} if no answer ends before its limit, "
        "warm-up and scoring not counted"
    )


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
