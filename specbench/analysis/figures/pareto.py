"""Quality vs. cost: seconds per sample, draft acceptance, or speedup.

After arXiv 2604.07622, with intervals. The dashed line is the randomised static front with its 95 %
band; the dotted line, if controls were run, that of the static and sharpened points together. If
every static weight lies below a coin between SD and the draft, the title has a mark. DIVERSED heads
of several target acceptances, and methods that were run with several values of one or two
parameters, are joined and labelled with these. Heads that differ in their seed alone are small
marks; the large mark is their mean. Up to three runs of a pair share panels: their markers are
whole, open, or with a dark edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.figures import AGAINST, families, figure, layout, style
from specbench.analysis.figures.style import GREY, Drawing, scaled
from specbench.analysis.results import Results
from specbench.analysis.statistics.blocks import by_time_unit, has_comparable_times
from specbench.analysis.statistics.front import (
    STATIC_FAMILY,
    front_band,
    front_of,
    gaps_from_coin,
    static_weight,
)
from specbench.analysis.statistics.points import Gain, settings_of
from specbench.analysis.tables.run_tables import LEARNED
from specbench.analysis.tables.shown import shown
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS
from specbench.runs.frames import CELL, SAMPLES

_QUALITY = "100*quality"
#: The fronts drawn, by the mark of their data, with the methods of their points.
_FRONTS = {"front": STATIC_FAMILY, "sharpened front": (*STATIC_FAMILY, *CONTROLS)}
_LINES = {"front": "--", "sharpened front": ":"}
_COIN = "†"  # behind the title, and in the legend
_MOST_COLUMNS = 3  # tasks side by side, so that a page's width shows their letters
_MOST_LABELLED = 100  # points of a panel; more leave no room for labels


class _Cost(NamedTuple):
    gain: Gain
    column: str
    scale: float  # from the column to the axis
    expression: str  # the scaled column, for ``style.points``


_COLUMNS: dict[Gain, str] = {
    "time": "seconds_per_sample",
    "acceptance": "draft_acceptance_rate",
    "speedup": "speedup",
}
_MISSING = {  # what to do where no cell has a cost
    "time": "draw --cost acceptance",
    "acceptance": "run a method that drafts, or draw --cost time",
    "speedup": "run autoregressive too",
}
COSTS: dict[str, _Cost] = {
    gain: _Cost(gain, column, shown(column).scale, f"{shown(column).scale:g}*{column}")
    for gain, column in _COLUMNS.items()
}


class _Panel(NamedTuple):
    """A panel: ``cells`` has a row per point, ``front`` columns ``mark``, ``x`` and ``quality``."""

    axes: Axes
    cost: _Cost
    cells: pd.DataFrame
    front: pd.DataFrame
    targets: pd.DataFrame  # family and target acceptance of cells with such heads
    coin: bool  # whether every static weight lies below a coin between SD and the draft

    def size(self, method: str) -> float:
        """Return the marker size of a method in points; markers of a family are smaller."""
        crowded = method == LEARNED and not self.targets.empty
        return style.look(method).size * (0.7 if crowded else 1)


@figure()
def draw(results: Results, against: Sequence[str] = AGAINST) -> Drawing:
    """Draw quality vs. costs: one column per task, one row per cost.

    Pairs have separate rows; so have engines and batch sizes, if one run has several. The front has
    a band if its points come from one run whose samples are available.
    """
    table = results.cells.dropna(subset="quality")
    if table.empty:
        raise UsageError(
            "no task of these runs has a quality: run one that does, or your own prompts with "
            "--metric agreement"
        )
    layout.only(table, "temperature")
    layout.only(table[table["draft_length"] > 0], "draft_length")
    layout.only(table, "drafter")
    costs = [COSTS[gain] for gain in against]
    if "time" in against:
        table = layout.timed_together(table, COSTS["time"].column)
        table = families.with_times_of_all_heads(table, COSTS["time"].column)
    for cost in costs:
        if table[cost.column].isna().all():
            raise UsageError(
                f"these runs have no {cost.gain} to draw quality against: {_MISSING[cost.gain]}"
            )

    table, names = _numbered(table)
    settings, tasks = layout.blocks(table, names), style.distinct(table, "task")
    rows, columns = len(costs) * len(settings), len(tasks)
    lines = -(-columns // _MOST_COLUMNS) if rows == 1 else 1  # a single row is broken
    figure, grid = style.panels(rows * lines, -(-columns // lines), height=1.75)
    grid = grid.reshape(rows, -1)
    for axes in grid[:, columns:].flat:
        axes.set_axis_off()
    grid, panels = grid[:, :columns], []
    for start, (setting, cells) in zip(range(0, rows, len(costs)), settings, strict=True):
        for task, column in zip(tasks, grid[start : start + len(costs)].T, strict=True):
            of_task = cells[cells["task"] == task]
            if drawn := list(_column(column, costs, of_task, results)):
                coin = _COIN if drawn[0].coin else ""
                layout.set_title(drawn[0].axes, layout.title(task, setting, of_task, coin))
            panels += drawn
    cells = pd.concat([panel.cells for panel in panels])
    cells = cells[~cells.index.duplicated()]  # of several costs
    drawn_fronts = (part for panel in panels for part in panel.front.groupby(["mark", "run_id"]))
    fronts = {mark for (mark, _), line in drawn_fronts if len(line) > 1}  # one point has no line
    has_band = any(panel.front["quality_low"].notna().any() for panel in panels)
    handles = _handles(style.distinct(cells, "method"), cells, fronts, has_band)
    runs: dict[int, list[str]] = {}
    for name, of_run in layout.blocks(cells, ["run_id", "engine", "batch_size"]):
        runs.setdefault(of_run["run"].iloc[0], []).append(name)
    for run, of_number in runs.items() if len(runs) > 1 else ():
        look = {"label": "; ".join(of_number), "color": GREY, **style.run_marker(GREY, run)}
        handles.append(style.handle(AUTOREGRESSIVE, **look))
    if any(panel.coin for panel in panels):
        handles.append(Line2D([], [], ls="", label=f"{_COIN} the front mixes sd and the draft"))
    style.legend(figure, handles)
    style.settle(figure)  # labels need the final layout
    for panel in panels:
        _label_points(panel)
    return Drawing(figure, pd.concat(map(_data, panels), ignore_index=True))


def _numbered(table: pd.DataFrame) -> tuple[pd.DataFrame, Sequence[str]]:
    """Number runs of the same panels in a column ``run``; return the names of rows of panels, too.

    Runs have rows of their own, and number 0, if a panel would have more than ``MOST_RUNS`` or
    markers of servers, which are open, or if one has several settings.
    """
    numbers: dict[str, int] = {}
    panels = {run: {*rows["pair"] + rows["task"]} for run, rows in table.groupby("run_id")}
    for run in style.distinct(table, "run_id"):
        beside = {number for other, number in numbers.items() if panels[other] & panels[run]}
        numbers[run] = min({*range(len(numbers) + 1)} - beside)
    if not any(numbers.values()):
        return table.assign(run=0), layout.SETTING
    settings = table.groupby("run_id")[["engine", "batch_size"]].nunique()
    servers = any(style.look(method).open for method in style.distinct(table, "method"))
    if servers or max(numbers.values()) >= style.MOST_RUNS or settings.max(axis=None) > 1:
        return table.assign(run=0), [*layout.SETTING, "run_id"]
    return table.assign(run=table["run_id"].map(numbers)), ["pair"]


def _column(
    column: Sequence[Axes], costs: Sequence[_Cost], rows: pd.DataFrame, results: Results
) -> Iterator[_Panel]:
    """Draw the panels of a task that have points; they share the quality axis."""
    first, samples = None, _samples(rows, results)
    fronts = (front_of(settings_of(rows_of_run)) for _, rows_of_run in samples.groupby("run_id"))
    coins = [gaps_from_coin(front).values() for front in fronts]
    coin = any(gaps and all(gap.above.high < 0 for gap in gaps) for gaps in coins)
    for axes, cost in zip(column, costs, strict=True):
        cells = rows.dropna(subset=cost.column)
        if cells.empty:
            axes.set_axis_off()
            continue
        if first is None:
            first = axes
        else:
            axes.sharey(first)
        front = _fronts(cells, cost, samples)
        panel = _Panel(axes, cost, cells, front, families.targets(cells), coin)
        _draw(panel)
        yield panel


def _draw(panel: _Panel) -> None:
    axes, cost, cells, front, *_ = panel
    seeds = families.recipes(cells)
    for (method, run), points in cells.drop(seeds.index).groupby(["method", "run"], sort=False):
        name, size = str(method), panel.size(str(method))
        beside_recipe = name == LEARNED and len(seeds) > 0  # whose mean is the large mark
        size *= 0.6 if beside_recipe else 1
        style.method_points(axes, points, name, cost.expression, _QUALITY, run, markersize=size)
    for (run, _), heads in cells.loc[seeds.index].groupby(["run", seeds], sort=False):
        size, columns = panel.size(LEARNED), [cost.column, "quality"]
        small = heads.drop(columns=[f"{name}_{end}" for name in columns for end in ("low", "high")])
        mean = pd.DataFrame([heads[columns].mean()], index=["mean"])  # no row of a cell
        for table, scale in ((small, 0.45), (mean, 1.0)):
            drawn = (axes, table, LEARNED, cost.expression, _QUALITY, run)
            style.method_points(*drawn, markersize=scale * size)
    for method, line in _family_lines(panel):
        thin = scaled(0.9 if method == LEARNED else 0.6)
        axes.plot(*line.T, "-", color=style.look(method).colour, linewidth=thin, zorder=3)
    for (mark, run), line in front.groupby(["mark", "run_id"], sort=False):
        colour = style.look("static" if mark == "front" else "cooled").colour
        width = scaled(0.6 if cells.loc[cells["run_id"] == run, "run"].any() else 1.1)
        look: dict[str, Any] = {"linestyle": _LINES[str(mark)], "linewidth": width}
        axes.plot("x", "quality", data=line, color=colour, zorder=2, **look)
        if mark == "front" and line["quality_low"].notna().any():
            ends = (line["quality_low"], line["quality_high"])
            axes.fill_between(line["x"], *ends, color=colour, alpha=0.18, linewidth=0, zorder=1)
    # An arrow points to what is better.
    axes.set_ylabel(f"{shown('quality', cells['quality_metric'].iloc[0]).label} →")
    axes.set_xlabel(f"{shown(cost.column).label} {'←' if cost.gain == 'time' else '→'}")
    axes.margins(x=0.08, y=0.14)
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])


def _samples(rows: pd.DataFrame, results: Results) -> pd.DataFrame:
    """Return the samples of the fronts and their baselines, none if they are not available."""
    try:
        samples = results.samples
    except UsageError:
        samples = pd.DataFrame(columns=[*SAMPLES])  # the summary is drawn alone
    family = rows[rows["method"].isin([*STATIC_FAMILY, *CONTROLS, AUTOREGRESSIVE])]
    cell = [*CELL]
    return samples.merge(family[cell].drop_duplicates(), on=cell) if len(samples) else samples


def _fronts(cells: pd.DataFrame, cost: _Cost, samples: pd.DataFrame) -> pd.DataFrame:
    """Return each run's static front and, if controls were run, the sharpened one.

    The columns are ``run_id``, ``mark``, ``x``, ``quality``, ``quality_low`` and ``quality_high``,
    in the panel's units.
    """
    texts = pd.DataFrame(columns=["run_id", "mark"], dtype="str")
    numbers = pd.DataFrame(columns=["x", "quality", "quality_low", "quality_high"], dtype="float64")
    fronts = []
    for run_id, samples_of_run in samples.groupby("run_id", sort=False):
        drawn = cells[cells["run_id"] == run_id]
        controlled = drawn["method"].isin(CONTROLS).any()
        for mark in [*_FRONTS][: 1 + controlled]:
            front = _front(drawn, cost, samples_of_run, _FRONTS[mark])
            fronts += [front.assign(run_id=run_id, mark=mark)] if len(front) else []
    return pd.concat(fronts or [texts.join(numbers)], ignore_index=True)


def _front(
    cells: pd.DataFrame, cost: _Cost, samples: pd.DataFrame, methods: Sequence[str]
) -> pd.DataFrame:
    """Return the front of some methods of a run, empty if it has none or no single session."""
    family = cells[cells["method"].isin(methods)]
    if cost.gain != "acceptance":  # times are compared within a session
        if family["session"].nunique() != 1:
            return pd.DataFrame()
        samples = samples[samples["session"] == family["session"].iloc[0]]
    baseline = cost.gain == "speedup" and AUTOREGRESSIVE not in set(samples["method"])
    if static_weight(family).nunique() < 2 or baseline:
        return pd.DataFrame()
    of_times = cost.gain != "acceptance"
    band = front_band(by_time_unit(samples) if of_times else samples, cost.gain, methods)
    if of_times and not has_comparable_times(samples):
        band[["low", "high"]] = float("nan")
    ends = {"low": "quality_low", "high": "quality_high", "gain": "x"}
    return band.rename(columns=ends) * [cost.scale, 100, 100, 100]


def _data(panel: _Panel) -> pd.DataFrame:
    """Return a panel's data: points, then the front, with the points' shared columns."""
    cost, cells = panel.cost, panel.cells
    points = layout.data(cells, "quality_metric", x=cost.expression, quality=_QUALITY)
    shared = ["pair", "task", "engine", "batch_size", "quality_metric"]
    front = panel.front.merge(cells.drop_duplicates("run_id")[["run_id", *shared]], on="run_id")
    drawn = pd.concat([points.assign(mark="point"), front])
    drawn.insert(0, "against", cost.gain)
    drawn.insert(0, "mark", drawn.pop("mark"))
    return drawn


def _family_lines(panel: _Panel) -> Iterator[tuple[str, np.ndarray]]:
    """Yield method and line [points, (x, y)] of each family of heads, by acceptance, and sweep."""
    cells, targets, cost = panel.cells, panel.targets, panel.cost
    members = cells.loc[targets.index].sort_values("draft_acceptance_rate")
    sweeps = cells.join(families.swept(cells), how="inner").sort_values("last", kind="stable")
    groups = [
        *members.groupby([members["run_id"], targets["family"]]),
        *sweeps.groupby(["run_id", "method", "line"]),
    ]
    for _, points in groups:
        if len(points) > 1:
            line = np.column_stack([cost.scale * points[cost.column], 100 * points["quality"]])
            yield str(points["method"].iloc[0]), line


def _label_points(panel: _Panel) -> None:
    """Label families with their targets, sweeps with their values, and static points with w."""
    axes, cost, cells, front, targets, *_ = panel
    if len(cells) > _MOST_LABELLED:
        return
    (x, *x_ends), (y, *y_ends) = style.values(cells, cost.expression), style.values(cells, _QUALITY)
    radius = [panel.size(method) / 2 for method in cells["method"]]
    bars = [
        *(np.column_stack([ends, [mean, mean]]) for *ends, mean in zip(*x_ends, y, strict=True)),
        *(np.column_stack([[mean, mean], ends]) for *ends, mean in zip(*y_ends, x, strict=True)),
    ]
    fronts = [line[["x", "quality"]].to_numpy() for _, line in front.groupby(["mark", "run_id"])]
    lines = [*fronts, *(line for _, line in _family_lines(panel)), *bars]

    weights = cells.loc[cells["method"] == "static", "weight"]
    middle = (weights.min() + weights.max()) / 2
    ends_first = (weights - middle).abs().sort_values(ascending=False, kind="stable").index
    position_of = dict(zip(cells.index, zip(x, y, strict=True), strict=True))
    swept = families.swept(cells)["text"]
    coloured = {*targets.index, *swept.index}
    static = weights.map("{:g}".format)[ends_first]
    texts = pd.concat([targets["target"].str.lstrip("0"), swept, static])
    labels = [
        layout.Label(
            position_of[i],
            text,
            style.look(cells["method"][i]).colour if i in coloured else GREY,
            None if i in weights.index else 0.9 * panel.size(cells["method"][i]),
        )
        for i, text in texts.items()
    ]
    recipes = families.recipes(cells)
    heads = cells.loc[recipes.index].assign(x=cost.scale * cells[cost.column])
    means = heads.groupby([recipes, "run_id"], sort=False)[["x", "quality"]].mean() * [1, 100]
    colour, size = style.look(LEARNED).colour, panel.size(LEARNED)
    folders = [PurePath(str(recipe)).parts for recipe, _ in means.index]
    depth = next((n for n in range(1, 9) if len({f[-n:] for f in folders}) == len({*folders})), 1)
    names = [  # the last folders in which they differ
        layout.Label((mean.x, mean.quality), parts[-depth:][0], colour, 0.9 * size)
        for mean, parts in zip(means.itertuples(), folders, strict=True)
    ]
    labels = [*names * (len(names) > 1), *labels]
    marks = np.column_stack([x, y, radius])
    marks = np.vstack([marks, np.insert(means.to_numpy(), 2, size / 2, axis=1)])
    layout.place(axes, labels, marks, lines)


def _handles(
    methods: Sequence[str], cells: pd.DataFrame, fronts: set[str], has_band: bool
) -> list[Line2D]:
    """Return entries of methods, and behind them of what else is drawn, whose texts are longer."""

    def line(dashes: Any, width: float, label: str, method: str = "") -> Line2D:
        colour = style.look(method).colour if method else GREY
        return Line2D([], [], linestyle=dashes, linewidth=scaled(width), color=colour, label=label)

    looks = {method: style.look(method) for method in style.ordered(methods)}
    servers = {name.partition("-")[0]: name for name, look in looks.items() if look.open}
    opened = {"marker": "o", "markersize": scaled(4.5), "color": GREY, "markeredgecolor": GREY}
    handles = [style.handle(method) for method, look in looks.items() if not look.open]
    handles += [style.handle(n, label=f"open: {s}", **opened) for s, n in servers.items()]
    if "front" in fronts:
        label = "static front, 95 % band" if has_band else "static front"
        handles.append(line("--", 1.1, label, "static"))
    if "sharpened front" in fronts:
        controlled = " and ".join(method for method in CONTROLS if method in methods)
        handles.append(line(":", 1.1, f"front with {controlled}", "cooled"))
    if not families.targets(cells).empty:
        handles.append(line("-", 0.9, "goals of training, labelled", LEARNED))
    elif not families.recipes(cells).empty:
        small = 0.45 * looks[LEARNED].size
        handles.append(style.handle(LEARNED, label=f"{LEARNED}, one seed", markersize=small))
    if not families.swept(cells).empty:
        handles.append(line("-", 0.6, "sweep, values labelled"))
    return handles
