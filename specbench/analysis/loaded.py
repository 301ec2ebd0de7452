"""Finished runs in a notebook: data frames, figures and a display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from specbench.analysis.figures import HEADS, STYLES, load_figure, source_of
from specbench.analysis.results import Results
from specbench.errors import UsageError
from specbench.runs.shown import Row, shown
from specbench.words import unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RUN = ["run_id", "pair", "tasks", "samples", "state", "hardware", "started"]
_MOST_ROWS = 60  # of a displayed table
_FIGURES = ("draft_acceptance_rate", "acceptance_length", "tokens_per_second", "speedup")


class LoadedResults(Results):
    """The tables of runs as in ``Results``, with figures; a notebook displays runs and cells."""

    def plot(self, figure: str = "pareto", *, style: str = STYLES[1], **options: Any) -> Figure:
        """Draw a figure of these runs, as ``specbench plot`` does.

        Args:
            figure: A figure that ``specbench plot`` draws from runs, or ``FILE.py:FUNCTION``.
            style: ``screen``, or ``paper`` for print.
            **options: Of the figure: ``against`` of ``pareto``.

        Raises:
            UsageError: There is no such figure of runs, or the runs lack what it shows.
        """
        from specbench.analysis.figures.style import page

        draw = load_figure(figure)
        if source_of(figure) == HEADS:
            raise UsageError(f"{figure} draws heads, not runs: use `specbench plot {figure}`")
        if style not in STYLES:
            raise UsageError(unknown("style", style, STYLES))
        with page(style):
            return draw(self, **options).figure

    def _repr_html_(self) -> str:
        """Return the runs, and the main figures of their cells with intervals, as HTML tables."""
        try:
            tables = [self.runs[_RUN].astype({"samples": "Int64"})]
        except UsageError:  # a run without its configuration
            tables = []
        cells = self.cells
        several = [] if cells["run_id"].nunique() > 1 else ["run"]
        figures = pd.DataFrame([_cell(cell) for cell in cells.to_dict("records")])
        tables.append(figures.drop(columns=several))
        return "\n".join(
            table.to_html(index=False, border=0, max_rows=_MOST_ROWS, na_rep="") for table in tables
        )


def _cell(cell: Row) -> dict[str, str]:
    """Return the main figures of a cell as text, under their headings."""
    quality = shown("quality", cell["quality_metric"])
    measured = [shown(name) for name in _FIGURES]
    return {
        "run": cell["run_id"],
        "task": cell["task"],
        "method": cell["label"],
        "N": str(cell["draft_length"] or ""),
        "T": f"{cell['temperature']:g}",
        "quality [95 %]": " ".join(filter(None, [quality.heading, quality.interval(cell)])),
        **{f"{figure.heading} [95 %]": figure.interval(cell) for figure in measured},
    }
