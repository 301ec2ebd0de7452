"""From the folders of runs to one page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.analysis.frames import run_folders
from specbench.analysis.selection import Selection
from specbench.experiment.folders import unfinished
from specbench.experiment.tables import SUMMARY
from specbench.report.cells import read_cells
from specbench.report.figures import figure_data
from specbench.report.origin import read_origin
from specbench.report.pages import render
from specbench.report.tables import summary_tables
from specbench.report.traces import collect_traces
from specbench.trace.trace import LEGEND


class Report(NamedTuple):
    """A page, and what the user should know of it."""

    html: str
    notes: list[str]


def build(paths: Sequence[Path], selection: Selection = Selection()) -> Report:  # noqa: B008 (frozen)
    """Return the report of some runs; the same runs give the same page.

    Args:
        paths: Folders of runs, or folders that hold those.
        selection: What of them is shown.

    Raises:
        UsageError: A run has no readable summary, or nothing of what is selected.
    """
    folders = run_folders(paths, SUMMARY)
    cells, further = read_cells(folders, selection)
    traces = collect_traces(folders, cells)
    states = {folder.name: unfinished(folder) for folder in folders}
    partial = [f"{name} is not a whole run: {state}" for name, state in states.items() if state]
    html = render(
        "report.html",
        title=", ".join(folder.name for folder in folders),
        notes=partial,
        tables=summary_tables(cells, further),
        figures=figure_data(cells),
        traces=traces,
        legend=LEGEND,
        origin=read_origin(folders),
        itself=shlex.join(["specbench", "report", *map(str, paths), *str(selection).split()]),
    )
    return Report(html, [*partial, *traces.notes])
