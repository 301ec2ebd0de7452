"""Draft acceptance of the static ensemble against its weight on the target.

After arXiv 2604.07622: acceptance at a position is 1 - w TV(p, q), so the curves fall almost
in a straight line, and lower for longer drafts, whose later positions are reached less often.
"""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.pareto import static_weight
from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.cells import blocks, data, title
from specbench.figures.style import Drawing, scaled
from specbench.results import Results

_ACCEPTANCE = "100*draft_acceptance_rate"


@style.paged
def draw(results: Results) -> Drawing:
    """Draw acceptance against w: one panel per task, one curve per draft length.

    ``sd`` closes a curve at w = 1. Pairs, engines and batch sizes are drawn below one another.

    Args:
        results: Runs of one temperature.

    Raises:
        UsageError: There is no static ensemble in them, or temperatures are mixed.
    """
    table = results.cells
    table = table.assign(w=static_weight(table)).dropna(subset=["w", "draft_acceptance_rate"])
    if "static" not in set(table["method"]):
        raise UsageError("Nothing to draw: these runs hold no static ensemble; sweep the weights.")
    style.only(table, "temperature", "temperature")

    apart, tasks = blocks(table), style.distinct(table, "task")
    lengths = sorted(style.distinct(table, "draft_length"))
    shades = matplotlib.colormaps["viridis_r"]
    colours = {
        length: shades(0.1 + 0.8 * i / len(lengths)) for i, length in enumerate(lengths, start=1)
    }
    figure, grid = style.panels(len(apart), len(tasks), height=1.9, sharex=True, sharey=True)
    drawn: list[pd.DataFrame] = []
    for (setting, rows), line in zip(apart, grid, strict=True):
        for task, axes in zip(tasks, line, strict=True):
            drawn += _panel(axes, rows[rows["task"] == task], colours)
            axes.set_title(title(task, setting))
        line[0].set_ylabel("Accepted / drafted (%)")
    for axes in grid[-1]:
        axes.set_xlabel("Weight on the target w")
        axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
    style.legend(
        figure,
        [
            Line2D([], [], color=colour, label=f"N = {length}", **_curve())
            for length, colour in colours.items()
        ],
    )
    return Drawing(figure, data(pd.concat(drawn), "w", draft_acceptance=_ACCEPTANCE))


def _panel(axes: Axes, cells: pd.DataFrame, colours: dict[Any, Any]) -> list[pd.DataFrame]:
    """Draw one curve per run and draft length, and return their points."""
    curves = []
    for (_, length), points in cells.groupby(["run_id", "draft_length"], sort=False):
        # sd and static at w = 1 are the same rule: one point.
        curve = points.sort_values("w").drop_duplicates("w")
        style.points(
            axes,
            curve,
            "w",
            _ACCEPTANCE,
            color=colours[length],
            label=f"N = {length}",
            **_curve(),
        )
        curves.append(curve)
    return curves


def _curve() -> dict[str, Any]:
    return {
        "marker": "o",
        "markersize": scaled(3.5),
        "linestyle": "-",
        "linewidth": scaled(1.1),
    }
