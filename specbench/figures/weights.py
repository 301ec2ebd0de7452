"""Draft acceptance of the static ensemble against its weight on the target.

After arXiv 2604.07622: acceptance at a position is 1 - w TV(p, q), so the curves fall almost
in a straight line, and lower for longer drafts, whose later positions are reached less often.
"""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.analysis.pareto import static_weight
from specbench.analysis.summary import wide
from specbench.errors import UsageError
from specbench.figures import style


@style.paged
def draw(summary: pd.DataFrame) -> Figure:
    """Draw acceptance against w: one panel per task, one curve per draft length.

    ``sd`` closes a curve at w = 1. Several pairs are drawn below one another.

    Args:
        summary: A tidy summary (``analysis.frames.SUMMARY``) of one temperature.

    Raises:
        UsageError: There is no static ensemble in it, or temperatures are mixed.
    """
    table = wide(summary)
    table = table.assign(w=static_weight(table)).dropna(subset=["w", "draft_acceptance_rate"])
    if "static" not in set(table["method"]):
        raise UsageError("Nothing to draw: these runs hold no static ensemble; sweep the weights.")
    style.only(table, "temperature", "temperature")

    pairs, tasks = style.distinct(table, "pair"), style.distinct(table, "task")
    lengths = sorted(style.distinct(table, "draft_length"))
    shades = matplotlib.colormaps["viridis_r"]
    colours = {
        length: shades(0.1 + 0.8 * i / len(lengths)) for i, length in enumerate(lengths, start=1)
    }
    figure, grid = style.panels(len(pairs), len(tasks), height=1.9, sharex=True, sharey=True)
    for pair, axes_row in zip(pairs, grid, strict=True):
        for task, axes in zip(tasks, axes_row, strict=True):
            cells = table[(table["pair"] == pair) & (table["task"] == task)]
            _panel(axes, cells, colours)
            axes.set_title(task if len(pairs) == 1 else f"{task} ({pair})")
        axes_row[0].set_ylabel("Draft acceptance (%)")
    for axes in grid[-1]:
        axes.set_xlabel("Weight on the target w")
        axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
    style.legend(
        figure,
        [
            Line2D([], [], color=colour, marker="o", markersize=3.5, label=f"N = {length}")
            for length, colour in colours.items()
        ],
    )
    return figure


def _panel(axes: Axes, cells: pd.DataFrame, colours: dict[Any, Any]) -> None:
    for (_, length), points in cells.groupby(["run_id", "draft_length"], sort=False):
        # sd and static at w = 1 are the same rule: one point.
        curve = points.sort_values("w").drop_duplicates("w")
        style.points(
            axes,
            curve,
            "w",
            "100*draft_acceptance_rate",
            marker="o",
            markersize=3.5,
            linestyle="-",
            linewidth=1.1,
            color=colours[length],
            label=f"N = {length}",
        )
