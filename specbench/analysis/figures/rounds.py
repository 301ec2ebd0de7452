"""The figure of rounds: acceptance by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D

from specbench.analysis.figures import figure, layout, style
from specbench.analysis.figures.style import Drawing, scaled
from specbench.analysis.results import Results
from specbench.analysis.statistics.positions import CONDITIONAL, MARGINAL, NOTHING_DRAFTED
from specbench.errors import require
from specbench.runs.frames import CELL

_KINDS = {
    CONDITIONAL: "Accepted, if all\nbefore it were (%)",
    MARGINAL: "Accepted, of rounds\nthat propose it (%)",
}
_APART = 0.12  # largest distance of a point from its position, so that intervals do not overlap
_LIGHTEST = 0.75  # share of white in the last setting of a method
_DASHES = ("-", "--", "-.", ":")  # of the settings of a method


@figure()
def draw_positions(results: Results) -> Drawing:
    """Draw acceptance by position: a column per task, conditional above marginal rates.

    Settings of one method have its colour, lighter and dashed for each further one; of more than
    four, four are drawn, from the first to the last. Pairs, engines and batch sizes have separate
    rows.
    """
    ends = {"ci_low": "value_low", "ci_high": "value_high"}
    table = results.positions.rename(columns=ends)
    require(not table.empty, NOTHING_DRAFTED)
    layout.only(table, "temperature")
    layout.only(table, "draft_length")
    cells = table[list(CELL)].drop_duplicates()
    cells = cells.assign(name=layout.cell_names(cells))
    names: list[str] = []
    for _, of_method in cells.drop_duplicates("name").groupby("method", sort=False):
        ranks = np.linspace(0, len(of_method) - 1, min(len(of_method), len(_DASHES))).round()
        names += of_method["name"].iloc[ranks.astype(int)].tolist()
    cells = cells[cells["name"].isin(names)]
    table = table.reset_index().merge(cells, on=list(CELL)).set_index("index")  # for tooltips
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
            layout.set_title(axes, layout.title(task, setting, rows))
    for axes in grid[-1]:
        axes.set_xlabel("Position of the draft")
        axes.locator_params(axis="x", integer=True)
    style.legend(figure, [Line2D([], [], label=name, **look) for name, look in lines.items()])
    return Drawing(figure, layout.data(table, "kind", "position", "rounds", accepted="100*value"))


def _line_styles(methods: pd.Series) -> dict[str, dict[str, Any]]:
    """Return a line style for each name; each further setting of a method is lighter and dashed."""
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
            "linestyle": _DASHES[rank[name]],
            "linewidth": scaled(0.9),
            "zorder": look.layer,
        }
    return styles
