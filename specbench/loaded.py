"""Finished runs in a notebook: data frames, figures and a display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from specbench.analysis.summary import shown_name, shown_scale
from specbench.errors import UsageError
from specbench.figures import FIGURES, HEADS, STYLES, load_figure
from specbench.results import Results
from specbench.runs.labels import method_labels
from specbench.table import interval_of, number, number_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RUN = ["run_id", "pair", "tasks", "samples", "state", "hardware", "started"]
_MOST_ROWS = 60  # of a displayed table


class LoadedResults(Results):
    """The tables of runs as in ``Results``, with figures; a notebook displays runs and cells."""

    def plot(self, figure: str = "pareto", *, style: str = STYLES[1], **options: Any) -> Figure:
        """Draw a figure of these runs, as ``specbench plot`` does.

        Args:
            figure: One of ``specbench.figures.FIGURES`` that is drawn from runs.
            style: ``screen``, or ``paper`` for print.
            **options: Of the figure: ``against`` of ``pareto``.

        Raises:
            UsageError: There is no such figure of runs, or the runs lack what it shows.
        """
        from specbench.figures.style import page

        draw = load_figure(figure)
        if FIGURES[figure].source == HEADS:
            raise UsageError(f"{figure} draws heads, not runs: use `specbench plot {figure}`")
        if style not in STYLES:
            raise UsageError(f"there is no style {style!r}: choose from {', '.join(STYLES)}")
        with page(style):
            return draw(self, **options).figure

    def _repr_html_(self) -> str:
        """Return the runs, and the main figures of their cells with intervals, as HTML tables."""
        try:
            tables = [self.runs[_RUN].astype({"samples": "Int64"})]
        except UsageError:  # a run without its configuration
            tables = []
        rows = self.cells.to_dict("records")
        several = self.cells["run_id"].nunique() > 1
        columns = [
            {**({"run": row["run_id"]} if several else {}), **_cell(row, label)}
            for row, label in zip(rows, method_labels(rows), strict=True)
        ]
        tables.append(pd.DataFrame(columns))
        return "\n".join(
            table.to_html(index=False, border=0, max_rows=_MOST_ROWS, na_rep="") for table in tables
        )


def _cell(row: dict[Any, Any], label: str) -> dict[str, str]:
    """Return the main figures of a cell as text."""
    metric = row["quality_metric"] if isinstance(row["quality_metric"], str) else ""
    quality = interval_of("quality", ".1f", shown_scale(metric))(row)
    return {
        "task": row["task"],
        "method": label,
        "N": number(row["draft_length"] or None, ".0f"),
        "T": f"{row['temperature']:g}",
        "quality [95 %]": f"{shown_name(metric)} {quality}" if quality else "",
        "accepted / drafted [95 %]": interval_of("draft_acceptance_rate", ".1f", 100, " %")(row),
        "tokens / round": number_of("acceptance_length", ".2f")(row),
        "tokens/s": number_of("tokens_per_second", ".0f")(row),
        "/ AR's [95 %]": interval_of("speedup", ".2f")(row),
    }
