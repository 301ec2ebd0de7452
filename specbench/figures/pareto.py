"""Quality against its price: seconds per sample, draft acceptance, or speed-up.

After arXiv 2604.07622, with intervals. Points further left (seconds) or right (the others) and up
are better; the dashed line is the randomised static front, the best that mixtures of the static
points reach, with its 95 % band. Heads of DIVERSED that were trained for several target acceptances
are joined by a line and marked with them; a target is a mean over positions, of which a share of
drafts accepted falls short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.digest import LEARNED
from specbench.analysis.pareto import STATIC_FAMILY, front_band, hull, static_weight
from specbench.analysis.points import Gain
from specbench.errors import UsageError
from specbench.figures import AGAINST, style
from specbench.figures.cells import blocks, data, title
from specbench.figures.labels import Label, place
from specbench.figures.style import Drawing, scaled
from specbench.heads.registry import FAMILY
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.results import Results

_QUALITY = "100*quality"
_MOST_LABELLED = 100  # points of a panel


class _Price(NamedTuple):
    """What quality is paid with; ``sign`` turns it into a gain, more of which is better."""

    gain: Gain
    column: str
    scale: float
    sign: float
    label: str

    @property
    def expression(self) -> str:
        """The price as ``style.points`` takes it."""
        return f"{self.scale:g}*{self.column}"


_PRICES: dict[str, _Price] = {
    price.gain: price
    for price in (
        _Price("time", "seconds_per_sample", 1.0, -1.0, "Time per sample (s)"),
        _Price("acceptance", "draft_acceptance_rate", 100.0, 1.0, "Accepted / drafted (%)"),
        _Price("speedup", "speedup", 1.0, 1.0, "Tokens/s over AR's (×)"),
    )
}


class _Panel(NamedTuple):
    """A panel with what is drawn in it.

    Attributes:
        axes: The panel.
        price: What quality is set against.
        cells: A row per point.
        front: ``x`` and ``quality`` with its ends, by rising price.
        wishes: Family and target acceptance of the cells whose heads have them.
    """

    axes: Axes
    price: _Price
    cells: pd.DataFrame
    front: pd.DataFrame
    wishes: pd.DataFrame

    def size(self, method: str) -> float:
        """Size of a method's marks, in points; a family's, which stand close, are smaller."""
        crowded = method == LEARNED and not self.wishes.empty
        return style.look(method).size * (0.7 if crowded else 1)


@style.paged
def draw(results: Results, against: Sequence[str] = AGAINST) -> Drawing:
    """Draw quality against prices: one column per task, one row per price.

    Pairs, engines and batch sizes are drawn below one another. The front has a band where its
    points are those of one run whose samples are at hand.

    Args:
        results: Runs of one temperature and draft length.
        against: The prices, from above.

    Raises:
        UsageError: Nothing in it has a quality and a price, or settings are mixed.
    """
    table = results.cells.dropna(subset="quality")
    if table.empty:
        raise UsageError("Nothing to draw: no task of these runs has a quality; run tasks that do.")
    style.only(table, "temperature", "temperature")
    style.only(table[table["draft_length"] > 0], "draft_length", "draft length")
    prices = [_PRICES[gain] for gain in against]
    for price in prices:
        if table[price.column].isna().all():
            raise UsageError(
                f"Nothing to draw against {price.gain}: these runs do not have it; run "
                f"{'autoregressive too' if price.gain == 'speedup' else 'a method that drafts'}."
            )

    apart, tasks = blocks(table), style.distinct(table, "task")
    figure, grid = style.panels(len(prices) * len(apart), len(tasks), height=1.75)
    panels = []
    for start, (setting, rows) in zip(range(0, len(grid), len(prices)), apart, strict=True):
        for task, column in zip(tasks, grid[start : start + len(prices)].T, strict=True):
            found = list(_column(column, prices, rows[rows["task"] == task], results))
            if found:
                found[0].axes.set_title(title(task, setting))
            panels += found
    shown = style.distinct(table, "method")
    style.legend(figure, _handles(shown, family=not _wishes(table).empty))
    style.settle(figure)  # labels are placed in the finished layout
    for panel in panels:
        _label_weights(panel)
    return Drawing(figure, pd.concat(map(_data, panels), ignore_index=True))


def _column(
    column: Sequence[Axes], prices: Sequence[_Price], rows: pd.DataFrame, results: Results
) -> Iterator[_Panel]:
    """Draw the panels of a task that have anything to show, and let them share their quality."""
    first, samples = None, _samples(rows, results)
    for axes, price in zip(column, prices, strict=True):
        cells = rows.dropna(subset=price.column)
        if cells.empty:
            axes.set_axis_off()
            continue
        if first is None:
            first = axes
        else:
            axes.sharey(first)
        panel = _Panel(axes, price, cells, _front(cells, price, samples), _wishes(cells))
        _draw(panel)
        yield panel


def _draw(panel: _Panel) -> None:
    axes, price, cells, curve, _ = panel
    for method, points in cells.groupby("method", sort=False):
        name, size = str(method), panel.size(str(method))
        style.method_points(axes, points, name, price.expression, _QUALITY, markersize=size)
    for line in _family_lines(panel):
        colour = style.look(LEARNED).colour
        axes.plot(*line.T, "-", color=colour, linewidth=scaled(0.9), zorder=3)
    grey = style.look("static").colour
    axes.plot("x", "quality", "--", data=curve, color=grey, linewidth=scaled(1.1), zorder=2)
    if curve["quality_low"].notna().any():
        ends = (curve["quality_low"], curve["quality_high"])
        axes.fill_between(curve["x"], *ends, color=grey, alpha=0.18, linewidth=0, zorder=1)
    axes.set_ylabel(style.quality_label(str(cells["quality_metric"].iloc[0])))
    axes.set_xlabel(price.label)
    axes.margins(x=0.08, y=0.08)
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])


def _samples(rows: pd.DataFrame, results: Results) -> pd.DataFrame | None:
    """The samples of a column's front and of its baseline, if they are at hand and of one run."""
    family = rows[rows["method"].isin(STATIC_FAMILY)]
    if family["run_id"].nunique() != 1:  # else each run has a front of its own
        return None
    try:
        samples = results.samples
    except UsageError:
        return None  # a summary without its samples can be drawn too
    wanted = samples["method"].isin([*STATIC_FAMILY, AUTOREGRESSIVE])
    for name in ("run_id", "pair", "task", "engine", "batch_size"):
        wanted &= samples[name] == family[name].iloc[0]
    return samples[wanted]


def _front(cells: pd.DataFrame, price: _Price, samples: pd.DataFrame | None) -> pd.DataFrame:
    """The static front in the panel's units: ``x``, and ``quality`` with its ends.

    It is a curve with its band where there are samples, else its corners.
    """
    family = cells[cells["method"].isin(STATIC_FAMILY)]
    if samples is not None and static_weight(family).nunique() > 1:
        band = front_band(samples, task=family["task"].iloc[0], gain=price.gain)
        ends = {"low": "quality_low", "high": "quality_high", "gain": "x"}
        return band.rename(columns=ends) * [price.scale, 100, 100, 100]
    cost, quality = family[price.column].to_numpy(), family["quality"].to_numpy()
    chosen = hull(price.sign * cost, quality)
    corners = {"x": price.scale * cost[chosen], "quality": 100 * quality[chosen]}
    return pd.DataFrame(corners).assign(quality_low=np.nan, quality_high=np.nan)


def _data(panel: _Panel) -> pd.DataFrame:
    """What a panel shows, points first; what they share is repeated in the rows of the front."""
    price, cells = panel.price, panel.cells
    points = data(cells, "quality_metric", x=price.expression, quality=_QUALITY)
    shared = ["pair", "task", "engine", "batch_size", "quality_metric"]
    curve = panel.front.assign(**cells[shared].iloc[0])
    both = pd.concat([points.assign(mark="point"), curve.assign(mark="front")])
    both.insert(0, "against", price.gain)
    both.insert(0, "mark", both.pop("mark"))
    return both


def _wishes(cells: pd.DataFrame) -> pd.DataFrame:
    """Family (its root) and target acceptance, as text, of the cells whose heads have them."""
    heads = cells.loc[cells["method"] == LEARNED, "head"].dropna()
    return heads.str.extract(rf"^(?P<family>.*){FAMILY}(?P<wish>[\d.]+)$").dropna()


def _family_lines(panel: _Panel) -> list[np.ndarray]:
    """A line [points, (x, y)] for each family of heads, by rising acceptance."""
    cells, wishes, price = panel.cells, panel.wishes, panel.price
    members = cells.loc[wishes.index].sort_values("draft_acceptance_rate")
    return [
        np.column_stack([price.scale * points[price.column], 100 * points["quality"]])
        for _, points in members.groupby([members["run_id"], wishes["family"]])
        if len(points) > 1
    ]


def _label_weights(panel: _Panel) -> None:
    """Write w beside the static points, the ends of the sweep first, and wishes beside a family.

    Points of many runs are a cloud, in which no label would find a place.
    """
    axes, price, cells, curve, wishes = panel
    if len(cells) > _MOST_LABELLED:
        return
    x, y = price.scale * cells[price.column], 100 * cells["quality"]
    radius = [panel.size(method) / 2 for method in cells["method"]]
    lines = [curve[["x", "quality"]].to_numpy(), *_family_lines(panel), *_bars(cells, price)]
    strokes = np.vstack([_along(line) for line in lines])

    weights = cells.loc[cells["method"] == "static", "weight"]
    middle = (weights.min() + weights.max()) / 2
    ends_first = (weights - middle).abs().sort_values(ascending=False, kind="stable").index
    labels = [Label(x[cell], y[cell], f"{weights[cell]:g}") for cell in ends_first]
    red, reach = style.look(LEARNED).colour, 0.9 * panel.size(LEARNED)
    named = [
        Label(x[cell], y[cell], wish.lstrip("0"), red, reach)
        for cell, wish in wishes["wish"].items()
    ]
    place(
        axes,
        named + labels,
        np.column_stack([x, y, radius]),
        strokes[~np.isnan(strokes).any(axis=1)],
    )


def _bars(cells: pd.DataFrame, price: _Price) -> list[np.ndarray]:
    """The ends [2, (x, y)] of every error bar in the panel's units."""
    (x, *across), (y, *up) = (style.values(cells, what) for what in (price.expression, _QUALITY))
    flat = np.stack([np.column_stack([end, y]) for end in across], axis=1)
    upright = np.stack([np.column_stack([x, end]) for end in up], axis=1)
    return [*flat, *upright]


def _along(line: np.ndarray) -> np.ndarray:
    """Points [20 per corner but at most 300, (x, y)] along a line given by corners [n, (x, y)]."""
    if not len(line):
        return line
    corners = np.arange(len(line))
    at = np.linspace(0, len(line) - 1, min(20 * len(line), 300))
    return np.column_stack([np.interp(at, corners, line[:, axis]) for axis in (0, 1)])


def _handles(methods: list[str], family: bool) -> list[Line2D]:
    lines: dict[str, dict[str, Any]] = {
        "static": {
            "linestyle": "--",
            "linewidth": scaled(1.1),
            "label": "Static at w, with randomised front",
        }
    }
    if family:
        lines[LEARNED] = {
            "linestyle": "-",
            "linewidth": scaled(0.9),
            "label": "DIVERSED at target acceptance",
        }
    return [style.handle(method, **lines.get(method, {})) for method in style.ordered(methods)]
