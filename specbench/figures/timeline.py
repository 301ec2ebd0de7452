"""Where the time goes: the parts of a round one after another, and prefill beside them.

What no part accounts for is ``other``: the host between rounds, for the most part. The interval is
that of the whole round.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.cells import blocks, data, names, require_few, title
from specbench.figures.style import Drawing
from specbench.results import Results

_ROW = 0.17  # inches of a method
_TIMED = tuple(f"{part}_seconds" for part in style.PARTS if part != "other")
_WHOLE, _PREFILL = "1000*round_seconds", "1000*prefill_seconds"


@style.paged
def draw(results: Results) -> Drawing:
    """Draw the milliseconds of a round, part after part, and of prefill: one row per task.

    Pairs, engines and batch sizes are drawn below one another.

    Args:
        results: Runs.

    Raises:
        UsageError: The parts of their rounds were not timed, or there are too many settings.
    """
    table = results.cells.dropna(subset=["round_seconds", *_TIMED])
    if table.empty:
        raise UsageError(
            "Nothing to draw: the parts of a round were not timed in these runs; run again."
        )
    table = table.assign(
        name=names(table),
        other_seconds=(table["round_seconds"] - table[[*_TIMED]].sum(axis=1)).clip(lower=0),
    )
    apart = [
        (title(task, setting), rows[rows["task"] == task])
        for setting, rows in blocks(table)
        for task in style.distinct(rows, "task")
    ]
    apart = [(heading, rows.iloc[_order(rows)]) for heading, rows in apart]
    require_few(len(table["name"].unique()))
    most = max(len(rows) for _, rows in apart)
    figure, grid = style.panels(
        len(apart), 2, height=0.4 + _ROW * most, sharex="col", sharey="row", width_ratios=[5, 2]
    )
    for (heading, rows), (left, right) in zip(apart, grid, strict=True):
        rows = rows.assign(place=np.arange(len(rows)))
        _draw_parts(left, rows)
        _draw_marks(left, rows, _WHOLE)
        _draw_marks(right, rows, _PREFILL)
        left.set_title(heading)
        left.set_yticks(rows["place"], rows["name"])
        left.set_ylim(len(rows) - 0.4, -0.6)
    grid[-1, 0].set_xlabel("Time per round (ms)")
    grid[-1, 1].set_xlabel("Prefill (ms)")
    for axes in grid[-1]:
        axes.set_xlim(left=0)
    patches = [Patch(color=colour, label=part.title()) for part, colour in style.PARTS.items()]
    style.legend(figure, patches)
    parts = {f"{part}_ms": f"1000*{part}_seconds" for part in style.PARTS}
    drawn = pd.concat([rows for _, rows in apart])
    return Drawing(figure, data(drawn, round_ms=_WHOLE, **parts, prefill_ms=_PREFILL))


def _order(rows: pd.DataFrame) -> list[int]:
    """The places of rows in the order of legends."""
    order = style.ordered(style.distinct(rows, "method"))
    return sorted(range(len(rows)), key=lambda row: order.index(rows["method"].iloc[row]))


def _draw_parts(axes: Axes, rows: pd.DataFrame) -> None:
    begin = np.zeros(len(rows))
    for part, colour in style.PARTS.items():
        width = 1000 * rows[f"{part}_seconds"].to_numpy()
        axes.barh(rows["place"], width, left=begin, color=colour, height=0.72)
        begin += width


def _draw_marks(axes: Axes, rows: pd.DataFrame, expression: str) -> None:
    """Draw a time of each row in its method's look, with its interval."""
    for method, points in rows.groupby("method", sort=False):
        style.method_points(axes, points, str(method), expression, "place")
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
