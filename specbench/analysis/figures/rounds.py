"""Figures of rounds: acceptance by position, accepted drafts per round, time per part of a round.

Accepted lengths include every round, even the last one of a text, in which drafts after the end are
not judged. Their mean therefore equals that of the tables: accepted drafts / rounds. Intervals are
95 % bootstrap intervals over prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specbench.analysis.figures import figure, layout, style
from specbench.analysis.figures.style import Drawing, scaled
from specbench.analysis.intervals import bootstrap, estimate, ratio
from specbench.analysis.output.shown import shown
from specbench.analysis.positions import CONDITIONAL, MARGINAL, NOTHING_DRAFTED
from specbench.analysis.results import Results
from specbench.errors import UsageError
from specbench.runs.frames import CELL

_KINDS = {
    CONDITIONAL: "Accepted, if all\nbefore it were (%)",
    MARGINAL: "Accepted,\nof all rounds (%)",
}
_APART = 0.12  # largest distance of a point from its position, so that intervals do not overlap
_LIGHTEST = 0.75  # share of white in the last setting of a method
_MOST_DRAWN = 4  # settings of a method
SHARE, MEAN = "share", "mean"
_MARK = ("mark", "accepted", "value", "value_low", "value_high")
_MEAN_AT = 1.18  # height of the mean's marker, in panel heights
_TIMED = tuple(f"{part}_seconds" for part in style.PARTS if part != "other")
_WHOLE, _PREFILL = "1000*round_seconds", "1000*prefill_seconds"


@figure()
def draw_positions(results: Results) -> Drawing:
    """Draw acceptance by position: a column per task, conditional above marginal rates.

    Settings of one method have its colour, lighter for each further one; of more than four, four
    are drawn, from the first to the last. Pairs, engines and batch sizes have separate rows.

    Raises:
        UsageError: No method drafts, temperatures or draft lengths are mixed, there are too many
            settings, or records of rounds are missing.
    """
    ends = {"ci_low": "value_low", "ci_high": "value_high"}
    table = results.positions.rename(columns=ends)
    layout.only(table, "temperature")
    layout.only(table, "draft_length")
    cells = table[list(CELL)].drop_duplicates()
    cells = cells.assign(name=layout.cell_names(cells))
    cells = cells[cells["name"].isin(_evenly(cells.drop_duplicates("name")))]
    table = table.merge(cells, on=list(CELL))
    methods = cells.drop_duplicates("name").set_index("name")["method"]
    order = style.ordered(list(methods.unique()))
    methods = methods.sort_values(key=lambda method: method.map(order.index), kind="stable")
    lines = _line_styles(methods)
    apart = dict(zip(methods.index, np.linspace(-_APART, _APART, len(methods)), strict=True))
    table = table.assign(x=table["position"] + table["name"].map(apart))

    settings, tasks = layout.blocks(table), style.distinct(table, "task")
    shared: dict[str, Any] = {"sharex": True, "sharey": "row"}
    figure, grid = style.panels(len(_KINDS) * len(settings), len(tasks), 1.45, **shared)
    for block, (setting, rows) in enumerate(settings):
        part = grid[len(_KINDS) * block :][: len(_KINDS)]
        for (kind, label), line in zip(_KINDS.items(), part, strict=True):
            line[0].set_ylabel(label)
            for task, axes in zip(tasks, line, strict=True):
                drawn = rows[(rows["task"] == task) & (rows["kind"] == kind)]
                for name in methods.index:
                    points = drawn[drawn["name"] == name]
                    style.points(axes, points, "x", "100*value", **lines[name])
        for task, axes in zip(tasks, part[0], strict=True):
            axes.set_title(layout.title(task, setting))
    for axes in grid[-1]:
        axes.set_xlabel("Position of the draft")
        axes.set_xticks(range(1, table["position"].max() + 1))
    style.legend(figure, [Line2D([], [], label=name, **look) for name, look in lines.items()])
    return Drawing(figure, layout.data(table, "kind", "position", "rounds", accepted="100*value"))


def _line_styles(methods: pd.Series) -> dict[str, dict[str, Any]]:
    """Return a line style for each name; each further setting of a method is lighter."""
    count, rank = methods.groupby(methods).transform("size"), methods.groupby(methods).cumcount()
    lighter = _LIGHTEST * rank / count
    styles = {}
    for name, method in methods.items():
        look = style.look(method)
        rgb = np.array(to_rgb(look.colour))
        styles[str(name)] = {
            "color": tuple(rgb + lighter[name] * (1 - rgb)),
            "marker": look.marker,
            "markersize": 0.7 * look.size,
            "linestyle": "-",
            "linewidth": scaled(0.9),
            "zorder": look.layer,
        }
    return styles


def _evenly(settings: pd.DataFrame) -> list[str]:
    """Return the names of at most ``_MOST_DRAWN`` settings of each method, evenly spread."""
    names: list[str] = []
    for _, of_method in settings.groupby("method", sort=False):
        ranks = np.linspace(0, len(of_method) - 1, min(len(of_method), _MOST_DRAWN)).round()
        names += of_method["name"].iloc[ranks.astype(int)].tolist()
    return names


@figure()
def draw_lengths(results: Results) -> Drawing:
    """Draw a histogram of the accepted drafts per round with its mean: a column per task.

    There is a row for each method and setting.

    Raises:
        UsageError: No method drafts, temperatures are mixed, there are too many settings, or
            records of rounds are missing.
    """
    rounds = results.rounds
    rounds = rounds[rounds["draft_length"] > 0]
    if rounds.empty:
        raise UsageError(NOTHING_DRAFTED)
    layout.only(rounds, "temperature")

    cells = rounds[list(CELL)].drop_duplicates()
    cells = cells.assign(name=layout.cell_names(cells, "\n"))
    methods = cells.drop_duplicates("name").set_index("name")["method"]
    of_cells = rounds.groupby(list(CELL), sort=False, dropna=False)
    marks = [
        histogram(rounds_of_cell).assign(**cell)
        for (_, rounds_of_cell), (_, cell) in zip(of_cells, cells.iterrows(), strict=True)
    ]
    counted = pd.concat(marks, ignore_index=True)[[*CELL, "name", *_MARK]]
    order = style.ordered(list(methods.unique()))
    rows = sorted(methods.index, key=lambda name: order.index(methods[name]))
    columns = layout.task_blocks(counted)
    figure, grid = style.panels(len(rows), len(columns), height=0.7, sharex=True, sharey=True)
    for (heading, part), line in zip(columns, grid.T, strict=True):
        for name, axes in zip(rows, line, strict=True):
            _draw_histogram(axes, part[part["name"] == name], methods[name])
        line[0].set_title(heading, pad=scaled(14))
    for name, axes in zip(rows, grid[:, 0], strict=True):
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    figure.supxlabel("Accepted drafts per round, with mean", fontsize=scaled(7.5))
    figure.supylabel("Share of rounds (%)", fontsize=scaled(7.5))
    return Drawing(figure, counted.drop(columns="name"))


def histogram(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the distribution of accepted drafts per round of a cell, and its mean.

    The columns are ``mark`` (``share``, or ``mean`` in the last row), ``accepted`` (blank for the
    mean), and ``value`` with its interval: percent of rounds, or drafts per round.
    """
    possible = np.arange(rounds["draft_length"].iloc[0] + 1)
    counts = rounds.groupby(["sample_id", "accepted"]).size().unstack(fill_value=0)
    filled = counts.reindex(columns=possible, fill_value=0).to_numpy(dtype=float)
    totals = bootstrap(np.column_stack([filled, filled @ possible, filled.sum(axis=1)]))
    figures = [estimate(ratio(totals[:, [i, -1]]), len(filled))[:3] for i in [*possible, -2]]
    table = pd.DataFrame(figures, columns=list(_MARK[2:]))
    table.loc[possible] *= 100
    table.insert(0, "accepted", [*possible.astype(float), np.nan])
    table.insert(0, "mark", [SHARE] * len(possible) + [MEAN])
    return table


def _draw_histogram(axes: Axes, marks: pd.DataFrame, method: str) -> None:
    """Draw the bars, and the mean above the panel."""
    axes.grid(axis="x", visible=False)
    axes.locator_params(axis="x", nbins=7, integer=True, min_n_ticks=1)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    if marks.empty:
        return
    bars, mean = marks[marks["mark"] == SHARE], marks[marks["mark"] == MEAN]
    axes.bar(bars["accepted"], bars["value"], width=0.8, color=style.look(method).colour, alpha=0.8)
    style.points(axes, bars, "accepted", "value", color="black", marker="", zorder=4)
    above = axes.get_xaxis_transform()
    raised = mean.assign(height=_MEAN_AT)
    style.method_points(axes, raised, method, "value", "height", transform=above, clip_on=False)
    mean_value = float(mean["value"].iloc[0])
    left = mean_value > bars["accepted"].max() / 2
    axes.annotate(
        f"{mean_value:.2f}",
        (mean_value, _MEAN_AT),
        xycoords=above,
        xytext=(scaled(-7 if left else 7), 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=scaled(6.5),
    )


@figure()
def draw_timeline(results: Results) -> Drawing:
    """Draw the milliseconds of each part of a round, and of prefill: a row per task.

    ``other`` is the rest of a round, mostly host time between rounds. The interval is that of the
    whole round. Pairs, engines and batch sizes have separate rows.

    Raises:
        UsageError: The parts of rounds were not timed, or there are too many settings.
    """
    table = layout.timed_together(results.cells, "round_seconds")
    table = table.dropna(subset=["round_seconds", *_TIMED])
    if table.empty:
        raise UsageError(
            "Nothing to draw: the parts of a round were not timed in these runs; run again."
        )
    other = (table["round_seconds"] - table[[*_TIMED]].sum(axis=1)).clip(lower=0)
    table = table.assign(name=layout.cell_names(table), other_seconds=other)
    order = style.ordered(style.distinct(table, "method"))
    table = table.sort_values("method", key=lambda m: m.map(order.index), kind="stable")
    parts = layout.task_blocks(table)
    height = 0.4 + 0.17 * max(len(rows) for _, rows in parts)
    figure, grid = style.panels(
        len(parts), 2, height, sharex="col", sharey="row", width_ratios=[5, 2]
    )
    for (heading, rows), (left, right) in zip(parts, grid, strict=True):
        rows = rows.assign(height=np.arange(len(rows)))
        begin = np.zeros(len(rows))
        for part, colour in style.PARTS.items():
            width = 1000 * rows[f"{part}_seconds"].to_numpy()
            left.barh(rows["height"], width, left=begin, color=colour, height=0.72)
            begin += width
        for axes, expression in ((left, _WHOLE), (right, _PREFILL)):
            for method, points in rows.groupby("method", sort=False):
                style.method_points(axes, points, str(method), expression, "height")
            axes.grid(axis="y", visible=False)
            axes.margins(x=0.12)
            axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
        left.set_title(heading)
        left.set_yticks(rows["height"], rows["name"])
        left.set_ylim(len(rows) - 0.4, -0.6)
    for axes, time in zip(grid[-1], ("round_seconds", "prefill_seconds"), strict=True):
        axes.set_xlabel(shown(time).label)
        axes.set_xlim(left=0)
    colours = style.PARTS.items()
    style.legend(figure, [Patch(color=colour, label=part.title()) for part, colour in colours])
    milliseconds = {f"{part}_ms": f"1000*{part}_seconds" for part in style.PARTS}
    drawn = pd.concat([rows for _, rows in parts])
    return Drawing(figure, layout.data(drawn, round_ms=_WHOLE, **milliseconds, prefill_ms=_PREFILL))
