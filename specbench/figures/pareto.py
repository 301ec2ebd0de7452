"""Quality against its price: seconds per sample above, draft acceptance below.

After arXiv 2604.07622, with intervals. Points further left (seconds) or right (acceptance) and up
are better; the dashed line joins the static points that no other static point dominates. Heads of
DIVERSED that were trained for several target acceptances are joined by a line and marked with them;
a target is a mean over positions, of which a share of drafts accepted falls short.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.analysis.digest import LEARNED
from specbench.analysis.pareto import STATIC_FAMILY, front
from specbench.analysis.summary import wide
from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.labels import Label, place
from specbench.heads.registry import FAMILY


class _Price(NamedTuple):
    """What quality is paid with; ``sign`` turns it into a gain, more of which is better."""

    column: str
    scale: float
    sign: float
    label: str


_PRICES = (
    _Price("seconds_per_sample", 1.0, -1.0, "Time per sample (s)"),
    _Price("draft_acceptance_rate", 100.0, 1.0, "Draft acceptance (%)"),
)


@style.paged
def draw(summary: pd.DataFrame) -> Figure:
    """Draw quality against seconds and against acceptance: one column per task.

    Several pairs are drawn below one another.

    Args:
        summary: A tidy summary (``analysis.frames.SUMMARY``) of one temperature and draft length.

    Raises:
        UsageError: Nothing in it has a quality, or settings are mixed.
    """
    table = wide(summary).dropna(subset="quality")
    if table.empty:
        raise UsageError("Nothing to draw: no task of these runs has a quality; run tasks that do.")
    style.only(table, "temperature", "temperature")
    style.only(table[table["draft_length"] > 0], "draft_length", "draft length")

    pairs, tasks = style.distinct(table, "pair"), style.distinct(table, "task")
    figure, grid = style.panels(len(_PRICES) * len(pairs), len(tasks), height=1.75)
    labelled = []
    for (row, column), axes in np.ndenumerate(grid):
        pair, price = pairs[row // len(_PRICES)], _PRICES[row % len(_PRICES)]
        task = tasks[column]
        cells = table[(table["pair"] == pair) & (table["task"] == task)]
        cells = cells.dropna(subset=price.column)
        if cells.empty:
            axes.set_axis_off()
            continue
        if price is _PRICES[0]:
            axes.set_title(task if len(pairs) == 1 else f"{task} ({pair})")
        else:
            axes.sharey(grid[row - 1, column])
        _panel(axes, cells, price)
        labelled.append((axes, cells, price))
    style.legend(figure, _handles(style.distinct(table, "method"), family=not _wishes(table).empty))
    figure.draw_without_rendering()  # labels are placed in the finished layout
    for axes, cells, price in labelled:
        _label_weights(axes, cells, price)
    return figure


def _panel(axes: Axes, cells: pd.DataFrame, price: _Price) -> None:
    for method, points in cells.groupby("method", sort=False):
        across, up = f"{price.scale:g}*{price.column}", "100*quality"
        size = _size(str(method), cells)
        style.method_points(axes, points, str(method), across, up, markersize=size)
    for line in _family_lines(cells, price):
        axes.plot(*line.T, "-", color=style.look(LEARNED).colour, linewidth=0.9, zorder=3)
    axes.plot(
        *_front_line(cells, price).T,
        "--",
        color=style.look("static").colour,
        linewidth=1.1,
        zorder=2,
    )
    unit = str(cells["quality_metric"].iloc[0])
    axes.set_ylabel(style.QUALITY_LABELS.get(unit, f"{unit} (×100)"))
    axes.set_xlabel(price.label)
    axes.margins(x=0.08, y=0.08)
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])


def _front_line(cells: pd.DataFrame, price: _Price) -> np.ndarray:
    """The static front's corners [points, (x, y)] in the panel's units."""
    family = cells[cells["method"].isin(STATIC_FAMILY)]
    cost, quality = family[price.column].to_numpy(), family["quality"].to_numpy()
    chosen = front(price.sign * cost, quality)
    return np.column_stack([price.scale * cost[chosen], 100 * quality[chosen]])


def _wishes(cells: pd.DataFrame) -> pd.DataFrame:
    """Family (its root) and target acceptance, as text, of the cells whose heads have them."""
    heads = cells.loc[cells["method"] == LEARNED, "head"].dropna()
    return heads.str.extract(rf"^(?P<family>.*){FAMILY}(?P<wish>[\d.]+)$").dropna()


def _size(method: str, cells: pd.DataFrame) -> float:
    """Size of a method's marks, in points; members of a family, which stand close, are smaller."""
    crowded = method == LEARNED and not _wishes(cells).empty
    return style.look(method).size * (0.7 if crowded else 1)


def _family_lines(cells: pd.DataFrame, price: _Price) -> list[np.ndarray]:
    """A line [points, (x, y)] for each family of heads, by rising acceptance."""
    wishes = _wishes(cells)
    members = cells.loc[wishes.index].sort_values("draft_acceptance_rate")
    return [
        np.column_stack([price.scale * points[price.column], 100 * points["quality"]])
        for _, points in members.groupby([members["run_id"], wishes["family"]])
        if len(points) > 1
    ]


def _label_weights(axes: Axes, cells: pd.DataFrame, price: _Price) -> None:
    """Write w beside the static points, the ends of the sweep first, and wishes beside a family."""
    x, y = price.scale * cells[price.column], 100 * cells["quality"]
    radius = [_size(method, cells) / 2 for method in cells["method"]]
    strokes = np.vstack(
        [
            _along(line)
            for line in (
                _front_line(cells, price),
                *_family_lines(cells, price),
                *_bars(cells, price),
            )
        ]
    )

    weights = cells.loc[cells["method"] == "static", "weight"]
    middle = (weights.min() + weights.max()) / 2
    ends_first = (weights - middle).abs().sort_values(ascending=False, kind="stable").index
    labels = [Label(x[cell], y[cell], f"{weights[cell]:g}") for cell in ends_first]
    red, reach = style.look(LEARNED).colour, 0.9 * _size(LEARNED, cells)
    named = [
        Label(x[cell], y[cell], wish.lstrip("0"), red, reach)
        for cell, wish in _wishes(cells)["wish"].items()
    ]
    place(
        axes,
        named + labels,
        np.column_stack([x, y, radius]),
        strokes[~np.isnan(strokes).any(axis=1)],
    )


def _bars(cells: pd.DataFrame, price: _Price) -> list[np.ndarray]:
    """The ends [2, (x, y)] of every error bar in the panel's units."""
    x, x_low, x_high = (price.scale * cells[price.column + end] for end in ("", "_low", "_high"))
    y, y_low, y_high = (100 * cells["quality" + end] for end in ("", "_low", "_high"))
    across = np.stack([np.column_stack([x_low, y]), np.column_stack([x_high, y])], axis=1)
    upright = np.stack([np.column_stack([x, y_low]), np.column_stack([x, y_high])], axis=1)
    return [*across, *upright]


def _along(line: np.ndarray) -> np.ndarray:
    """Points [20 per corner, (x, y)] along a line given by its corners [n, (x, y)]."""
    if not len(line):
        return line
    corners = np.arange(len(line))
    at = np.linspace(0, len(line) - 1, 20 * len(line))
    return np.column_stack([np.interp(at, corners, line[:, axis]) for axis in (0, 1)])


def _handles(methods: list[str], family: bool) -> list[Line2D]:
    lines: dict[str, dict[str, Any]] = {
        "static": {"linestyle": "--", "linewidth": 1.1, "label": "Static at w, with front"}
    }
    if family:
        lines[LEARNED] = {
            "linestyle": "-",
            "linewidth": 0.9,
            "label": "DIVERSED at target acceptance",
        }
    return [style.handle(method, **lines.get(method, {})) for method in style.ordered(methods)]
