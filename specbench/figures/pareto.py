"""Quality vs. cost: seconds per sample, draft acceptance, or speedup.

After arXiv 2604.07622, with intervals. The dashed line is the randomised static front, the best
that mixtures of the static points reach, with its 95 % band. Heads of DIVERSED that were trained
for several target acceptances are joined by a line and labelled with their targets; a target is a
mean over positions, and the share of drafts accepted is lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from specbench.analysis.pareto import STATIC_FAMILY, front_band, hull, static_weight
from specbench.analysis.points import Gain
from specbench.analysis.run_tables import LEARNED
from specbench.errors import UsageError
from specbench.figures import AGAINST, style
from specbench.figures.style import GREY, Drawing, data, scaled
from specbench.heads.registry import FAMILY
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.results import Results

_QUALITY = "100*quality"
_MOST_LABELLED = 100  # points of a panel; a cloud has no room for labels

_FONT_POINTS = 5.8
_REACH = 4.2  # points from a point to its label
_MARGIN = 0.4  # points left free around a label
# The sides of a point to try, best first.
_SIDES = ((1, 1), (-1, -1), (-1, 1), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
_COVERED = 1e6  # what it costs to cover a marker or a text; a point of a line costs 1


class _Cost(NamedTuple):
    """What quality is drawn against; ``sign`` turns it into a gain, of which more is better."""

    gain: Gain
    column: str
    scale: float
    sign: float
    label: str

    @property
    def expression(self) -> str:
        """The cost as ``style.points`` takes it."""
        return f"{self.scale:g}*{self.column}"


_COSTS: dict[str, _Cost] = {
    cost.gain: cost
    for cost in (
        _Cost("time", "seconds_per_sample", 1.0, -1.0, "Time per sample (s)"),
        _Cost("acceptance", "draft_acceptance_rate", 100.0, 1.0, "Accepted / drafted (%)"),
        _Cost("speedup", "speedup", 1.0, 1.0, "Speedup over autoregressive (×)"),
    )
}


class _Panel(NamedTuple):
    """A panel: a row per point, and the front as ``x`` and ``quality`` by rising cost."""

    axes: Axes
    cost: _Cost
    cells: pd.DataFrame
    front: pd.DataFrame
    targets: pd.DataFrame  # family and target acceptance of the cells whose heads have them

    def size(self, method: str) -> float:
        """Return the size of a method's markers, in points; those of a family are smaller."""
        crowded = method == LEARNED and not self.targets.empty
        return style.look(method).size * (0.7 if crowded else 1)


class Label(NamedTuple):
    """A text for a point."""

    point: tuple[float, float]  # in data units
    text: str
    colour: str = GREY
    reach: float | None = None  # points from the point to the label


@style.paged
def draw(results: Results, against: Sequence[str] = AGAINST) -> Drawing:
    """Draw quality vs. costs: one column per task, one row per cost.

    Pairs, engines and batch sizes are drawn below one another. The front has a band where its
    points are those of one run whose samples are available.

    Raises:
        UsageError: Nothing in it has a quality and a cost, or settings are mixed.
    """
    table = results.cells.dropna(subset="quality")
    if table.empty:
        raise UsageError("Nothing to draw: no task of these runs has a quality; run tasks that do.")
    style.only(table, "temperature")
    style.only(table[table["draft_length"] > 0], "draft_length")
    costs = [_COSTS[gain] for gain in against]
    for cost in costs:
        if table[cost.column].isna().all():
            raise UsageError(
                f"Nothing to draw against {cost.gain}: these runs do not have it; run "
                f"{'autoregressive too' if cost.gain == 'speedup' else 'a method that drafts'}."
            )

    settings, tasks = style.blocks(table), style.distinct(table, "task")
    figure, grid = style.panels(len(costs) * len(settings), len(tasks), height=1.75)
    panels = []
    for start, (setting, rows) in zip(range(0, len(grid), len(costs)), settings, strict=True):
        for task, column in zip(tasks, grid[start : start + len(costs)].T, strict=True):
            found = list(_column(column, costs, rows[rows["task"] == task], results))
            if found:
                found[0].axes.set_title(style.title(task, setting))
            panels += found
    methods = style.distinct(table, "method")
    style.legend(figure, _handles(methods, family=not _targets(table).empty))
    style.settle(figure)  # labels are placed in the final layout
    for panel in panels:
        _label_points(panel)
    return Drawing(figure, pd.concat(map(_data, panels), ignore_index=True))


def known_costs(cells: pd.DataFrame) -> list[str]:
    """Return the costs that some cell has."""
    return [gain for gain, cost in _COSTS.items() if cells[cost.column].notna().any()]


def _column(
    column: Sequence[Axes], costs: Sequence[_Cost], rows: pd.DataFrame, results: Results
) -> Iterator[_Panel]:
    """Draw the panels of a task that have points; they share their axis of quality."""
    first, samples = None, _samples(rows, results)
    for axes, cost in zip(column, costs, strict=True):
        cells = rows.dropna(subset=cost.column)
        if cells.empty:
            axes.set_axis_off()
            continue
        if first is None:
            first = axes
        else:
            axes.sharey(first)
        panel = _Panel(axes, cost, cells, _front(cells, cost, samples), _targets(cells))
        _draw(panel)
        yield panel


def _draw(panel: _Panel) -> None:
    axes, cost, cells, front, _ = panel
    for method, points in cells.groupby("method", sort=False):
        name, size = str(method), panel.size(str(method))
        style.method_points(axes, points, name, cost.expression, _QUALITY, markersize=size)
    for line in _family_lines(panel):
        colour = style.look(LEARNED).colour
        axes.plot(*line.T, "-", color=colour, linewidth=scaled(0.9), zorder=3)
    grey = style.look("static").colour
    axes.plot("x", "quality", "--", data=front, color=grey, linewidth=scaled(1.1), zorder=2)
    if front["quality_low"].notna().any():
        ends = (front["quality_low"], front["quality_high"])
        axes.fill_between(front["x"], *ends, color=grey, alpha=0.18, linewidth=0, zorder=1)
    axes.set_ylabel(style.quality_label(str(cells["quality_metric"].iloc[0])))
    axes.set_xlabel(cost.label)
    axes.margins(x=0.08, y=0.14)
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])


def _samples(rows: pd.DataFrame, results: Results) -> pd.DataFrame | None:
    """The samples of the front and its baseline, where they are available and of one run."""
    family = rows[rows["method"].isin(STATIC_FAMILY)]
    if family["run_id"].nunique() != 1:  # each run has a front of its own
        return None
    try:
        samples = results.samples
    except UsageError:
        return None  # a summary can be drawn without its samples
    wanted = samples["method"].isin([*STATIC_FAMILY, AUTOREGRESSIVE])
    for name in ("run_id", "pair", "task", "engine", "batch_size"):
        wanted &= samples[name] == family[name].iloc[0]
    return samples[wanted]


def _front(cells: pd.DataFrame, cost: _Cost, samples: pd.DataFrame | None) -> pd.DataFrame:
    """The static front in the panel's units: a curve with its band, or without samples a hull."""
    family = cells[cells["method"].isin(STATIC_FAMILY)]
    if samples is not None and static_weight(family).nunique() > 1:
        band = front_band(samples, cost.gain)
        ends = {"low": "quality_low", "high": "quality_high", "gain": "x"}
        return band.rename(columns=ends) * [cost.scale, 100, 100, 100]
    value, quality = family[cost.column].to_numpy(), family["quality"].to_numpy()
    corners = hull(cost.sign * value, quality)
    line = {"x": cost.scale * value[corners], "quality": 100 * quality[corners]}
    return pd.DataFrame(line).assign(quality_low=np.nan, quality_high=np.nan)


def _data(panel: _Panel) -> pd.DataFrame:
    """What a panel shows, points first; rows of the front repeat what the points share."""
    cost, cells = panel.cost, panel.cells
    points = data(cells, "quality_metric", x=cost.expression, quality=_QUALITY)
    shared = ["pair", "task", "engine", "batch_size", "quality_metric"]
    front = panel.front.assign(**cells[shared].iloc[0])
    both = pd.concat([points.assign(mark="point"), front.assign(mark="front")])
    both.insert(0, "against", cost.gain)
    both.insert(0, "mark", both.pop("mark"))
    return both


def _targets(cells: pd.DataFrame) -> pd.DataFrame:
    """Family (its root) and target acceptance, as text, of the cells whose heads have them."""
    heads = cells.loc[cells["method"] == LEARNED, "head"].dropna()
    return heads.str.extract(rf"^(?P<family>.*){FAMILY}(?P<target>[\d.]+)$").dropna()


def _family_lines(panel: _Panel) -> list[np.ndarray]:
    """A line [points, (x, y)] for each family of heads, by rising acceptance."""
    cells, targets, cost = panel.cells, panel.targets, panel.cost
    members = cells.loc[targets.index].sort_values("draft_acceptance_rate")
    return [
        np.column_stack([cost.scale * points[cost.column], 100 * points["quality"]])
        for _, points in members.groupby([members["run_id"], targets["family"]])
        if len(points) > 1
    ]


def _label_points(panel: _Panel) -> None:
    """Label static points with w, the ends of the sweep first, and a family with its targets."""
    axes, cost, cells, front, targets = panel
    if len(cells) > _MOST_LABELLED:
        return
    (x, *x_ends), (y, *y_ends) = style.values(cells, cost.expression), style.values(cells, _QUALITY)
    radius = [panel.size(method) / 2 for method in cells["method"]]
    bars = [
        *(np.column_stack([ends, [at, at]]) for *ends, at in zip(*x_ends, y, strict=True)),
        *(np.column_stack([[at, at], ends]) for *ends, at in zip(*y_ends, x, strict=True)),
    ]
    lines = [front[["x", "quality"]].to_numpy(), *_family_lines(panel), *bars]

    weights = cells.loc[cells["method"] == "static", "weight"]
    middle = (weights.min() + weights.max()) / 2
    ends_first = (weights - middle).abs().sort_values(ascending=False, kind="stable").index
    red, reach = style.look(LEARNED).colour, 0.9 * panel.size(LEARNED)
    at = dict(zip(cells.index, zip(x, y, strict=True), strict=True))
    labels = [
        *(Label(at[i], t.lstrip("0"), red, reach) for i, t in targets["target"].items()),
        *(Label(at[i], f"{weights[i]:g}") for i in ends_first),
    ]
    place(axes, labels, np.column_stack([x, y, radius]), lines)


def place(
    axes: Axes, labels: Sequence[Label], marks: np.ndarray, lines: Sequence[np.ndarray]
) -> None:
    """Write each label beside its point, where it covers least, the most important one first.

    A label is left out that would cover a marker or another label everywhere, or leave the panel.
    (adjustText was tried: it keeps every label, over markers and outside the panel if need be.)

    Args:
        axes: A panel whose figure is laid out.
        labels: What to write.
        marks: [n, (x, y, radius)] markers in data units, their radius in points.
        lines: Corners [n, (x, y)] of lines in data units.
    """
    pixels = axes.figure.dpi / 72
    centre, radius = axes.transData.transform(marks[:, :2]), marks[:, 2:] * pixels
    along = np.vstack([_along(axes.transData.transform(line), pixels) for line in lines])
    # What a label may cover: [n, (left, bottom, right, top)], and what covering it costs.
    boxes = np.vstack([np.hstack([centre - radius, centre + radius]), np.tile(along, 2)])
    costs = np.repeat([_COVERED, 1.0], [len(marks), len(along)])
    frame = axes.bbox.extents
    margin = scaled(_MARGIN) * pixels * np.array([-1, -1, 1, 1])
    for label in labels:
        text = axes.annotate(
            label.text,
            label.point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=scaled(_FONT_POINTS),
            color=label.colour,
            zorder=6,
            path_effects=[withStroke(linewidth=scaled(1.4), foreground="white")],
        )
        text.set_in_layout(False)
        found = []
        for across, up in _SIDES:
            reach = (label.reach or scaled(_REACH)) * (0.6 if across and up else 1.0)
            spot: dict[str, Any] = {"position": (reach * across, reach * up)}
            spot |= {"ha": ("right", "center", "left")[across + 1]}
            spot |= {"va": ("top", "center", "bottom")[up + 1]}
            text.set(**spot)
            box = np.array(text.get_window_extent().extents) + margin
            outside = (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any()
            apart = (boxes[:, :2] >= box[2:]) | (boxes[:, 2:] <= box[:2])
            cost = costs[~apart.any(axis=1)].sum() + _COVERED * outside
            found.append((cost, spot, box))
        cost, spot, box = min(found, key=lambda candidate: candidate[0])
        if cost < _COVERED:
            text.set(**spot)
            boxes, costs = np.vstack([boxes, box]), np.append(costs, _COVERED)
        else:
            text.remove()


def _along(corners: np.ndarray, step: float) -> np.ndarray:
    """Points [n, (x, y)] along a line that may have no corners, or ends that are not known."""
    if not len(corners) or np.isnan(corners).any():
        return np.empty((0, 2))
    reached = np.hypot(*np.diff(corners, axis=0, prepend=corners[:1]).T).cumsum()
    at = np.arange(0, reached[-1] + step, step)
    return np.column_stack([np.interp(at, reached, side) for side in corners.T])


def _handles(methods: Sequence[str], family: bool) -> list[Line2D]:
    lines: dict[str, dict[str, Any]] = {
        "static": {
            "linestyle": "--",
            "linewidth": scaled(1.1),
            "label": "Static ensemble (w labelled) with randomised front",
        }
    }
    if family:
        lines[LEARNED] = {
            "linestyle": "-",
            "linewidth": scaled(0.9),
            "label": "DIVERSED (target acceptance labelled)",
        }
    return [style.handle(method, **lines.get(method, {})) for method in style.ordered(methods)]
