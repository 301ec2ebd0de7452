"""Measured against predicted metrics: they agree on the diagonal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis.theory import ACCEPTANCE, LENGTH, theory_table
from specbench.figures import figure, style
from specbench.figures.cells import data, only, task_blocks
from specbench.figures.style import GREY, Drawing, scaled
from specbench.results import Results
from specbench.runs.shown import shown

#: The metrics drawn, with their scales and column titles.
_COLUMNS = {
    ACCEPTANCE: (100, shown("conditional_acceptance_rate").label),
    LENGTH: (1, "Accepted length"),
}
_MARGIN = 0.08  # fraction of the points' range


@figure("theory")
def draw(results: Results) -> Drawing:
    """Draw measured against predicted metrics: one row per task, one column per metric.

    A bar is the 95 % bootstrap interval over prompts of measured minus predicted; the two agree if
    it crosses the diagonal.

    Raises:
        UsageError: No method drafts, temperatures are mixed, or records are missing.
    """
    folders = [Path(folder) for folder in results.runs["folder"]]
    table = pd.concat([theory_table(folder) for folder in folders])
    table = results.selection.of(table)
    only(table, "temperature")
    table = table[table["metric"].isin([*_COLUMNS])].reset_index(drop=True)
    ends = {f"y{end}": table["predicted"] + table[f"difference{end}"] for end in ("_low", "_high")}
    table = table.assign(x=table["predicted"], y=table["measured"], **ends)
    lines = task_blocks(table)
    figure, grid = style.panels(len(lines), len(_COLUMNS), height=1.9)
    for (heading, rows), line in zip(lines, grid, strict=True):
        for metric, axes in zip(_COLUMNS, line, strict=True):
            _panel(axes, rows, metric)
        line[0].set_ylabel(f"{heading}\nMeasured")
    for (_, heading), top, bottom in zip(_COLUMNS.values(), grid[0], grid[-1], strict=True):
        top.set_title(heading)
        bottom.set_xlabel("Predicted")
    methods = style.ordered(style.distinct(table, "method"))
    style.legend(figure, [*map(style.handle, methods)])
    return Drawing(figure, data(table, "metric", "unit", predicted="x", measured="y"))


def _panel(axes: Axes, rows: pd.DataFrame, metric: str) -> None:
    """Draw a metric and the diagonal."""
    scale, _ = _COLUMNS[metric]
    drawn = rows[rows["metric"] == metric]
    for method, points in drawn.groupby("method", sort=False):
        style.method_points(axes, points, str(method), f"{scale}*x", f"{scale}*y")
    ends = scale * drawn[["x", "y", "y_low", "y_high"]].to_numpy(dtype=float)
    if np.isnan(ends).all():
        return
    low, high = np.nanmin(ends), np.nanmax(ends)
    margin = _MARGIN * (high - low) or 0.5
    low, high = low - margin, high + margin
    axes.plot([low, high], [low, high], color=GREY, linewidth=scaled(0.7), zorder=1)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.locator_params(nbins=4, steps=[1, 2, 5, 10])
