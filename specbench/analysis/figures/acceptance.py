"""Draft acceptance against total time, and against the weight of the static ensemble.

After arXiv 2604.07622. The speeds of pairs differ by orders of magnitude, so time is normalised per
run, pair, task, engine and batch size: 0 is the fastest setting drawn, 1 the slowest.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.figures import figure, style
from specbench.analysis.figures.layout import data, only, task_panels, timed_together
from specbench.analysis.figures.style import Drawing, scaled
from specbench.analysis.results import Results
from specbench.analysis.statistics.front import static_weight
from specbench.analysis.statistics.intervals import Floats
from specbench.analysis.statistics.positions import NOTHING_DRAFTED
from specbench.analysis.tables.shown import shown
from specbench.errors import UsageError, require

_FEWEST_POINTS = 6  # three coefficients and three degrees of freedom
_RESAMPLES = 2000
_ACCEPTANCE, _LABEL = "100*draft_acceptance_rate", shown("draft_acceptance_rate").label


@figure()
def draw_time(results: Results) -> Drawing:
    """Draw acceptance against normalised time: one column per task, one colour per pair.

    Each point is one method in one setting. If a pair has enough points, a quadratic with its 95 %
    band is fitted to them. Engines, batch sizes, and runs of one pair have separate rows.
    """
    table = timed_together(results.cells, "seconds_per_sample")
    table = table.dropna(subset=["draft_acceptance_rate", "seconds_per_sample"])
    if table.empty:
        raise UsageError(NOTHING_DRAFTED)
    for name in ("drafter", "temperature", "draft_length"):
        only(table, name)
    panel = ["pair", "task", "engine", "batch_size"]
    names = ["engine", "batch_size"]
    if table.groupby(panel)["run_id"].nunique().max() > 1:  # whose times do not compare
        names.append("run_id")
    panels = table.groupby([*panel, "run_id"])["seconds_per_sample"]
    fastest, slowest = panels.transform("min"), panels.transform("max")
    span = (slowest - fastest).replace(0, 1)
    table = table.assign(time=(table["seconds_per_sample"] - fastest) / span)
    pairs = style.distinct(table, "pair")
    # With a single pair, methods keep their own colours.
    colours_of_pairs = cycle(style.PAIR_COLOURS if len(pairs) > 1 else [None])
    colours: dict[str, str | None] = dict(zip(pairs, colours_of_pairs, strict=False))
    figure, grid, panels = task_panels(table, 2.0, names, sharey=True)
    fitted = False
    for axes, rows in panels:
        for pair, colour in colours.items():
            fitted |= _draw_pair(axes, rows[rows["pair"] == pair], colour)
        axes.set_xlim(-0.06, 1.06)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    for axes in grid[:, 0]:
        axes.set_ylabel(_LABEL)
    for axes in grid[-1]:
        axes.set_xlabel("Total time (0: fastest,\n1: slowest of the pair)")
    grey = style.GREY if len(pairs) > 1 else None
    handles = [
        *(Line2D([], [], color=c, lw=scaled(1.5), label=pair) for pair, c in colours.items() if c),
        *(
            style.handle(method, **_paint(method, grey, rim=False))
            for method in style.ordered(style.distinct(table, "method"))
        ),
        *([Line2D([], [], color=style.GREY, label="quadratic fit, 95 % band")] if fitted else []),
    ]
    style.legend(figure, handles)
    behind = data(table, "time", "seconds_per_sample", draft_acceptance=_ACCEPTANCE)
    return Drawing(figure, behind)


@figure()
def draw_weights(results: Results) -> Drawing:
    """Draw the acceptance of the static ensemble against w: a panel per task, a curve per N.

    Acceptance at a position is 1 - w TV(p, q), so the curves fall almost linearly. Longer drafts
    have lower curves, because their later positions are reached less often. ``sd`` is the point at
    w = 1. Pairs, engines and batch sizes have separate rows.
    """
    table = results.cells
    table = table.assign(w=static_weight(table)).dropna(subset=["w", "draft_acceptance_rate"])
    swept = table.loc[table["method"] == "static", "task"]
    require(not swept.empty, "these runs hold no static ensemble: run sweep-weights")
    table = table[table["task"].isin(swept)]  # a panel with sd alone would show no curve
    only(table, "temperature")
    only(table, "drafter")

    lengths = sorted(style.distinct(table, "draft_length"))
    steps = 0.8 * np.arange(1, 1 + len(lengths)) / len(lengths)
    shades = matplotlib.colormaps["viridis_r"](0.1 + steps)
    line: dict[str, Any] = {"marker": "o", "markersize": scaled(3.5), "linestyle": "-"}
    curves = {
        length: line | {"color": shade, "linewidth": scaled(1.1), "label": f"N = {length}"}
        for length, shade in zip(lengths, shades, strict=True)
    }
    figure, grid, panels = task_panels(table, 1.9, sharex=True, sharey=True)
    drawn = []
    for axes, rows in panels:
        for (_, length), cells in rows.groupby(["run_id", "draft_length"], sort=False):
            # sd equals static at w = 1: keep one point.
            curve = cells.sort_values("w").drop_duplicates("w")
            style.points(axes, curve, "w", _ACCEPTANCE, **curves[length])
            drawn.append(curve)
    for axes in grid[:, 0]:
        axes.set_ylabel(_LABEL)
    for axes in grid[-1]:
        axes.set_xlabel("Weight on the target w")
        axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
    style.legend(figure, [Line2D([], [], **curve) for curve in curves.values()])
    return Drawing(figure, data(pd.concat(drawn), "w", draft_acceptance=_ACCEPTANCE))


def quadratic_band(x: Floats, y: Floats, grid: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit a quadratic to at least four points, with a 95 % band from a residual bootstrap.

    Returns the fit and the lower and upper edges of its band at ``grid``, each [len(grid)].
    """
    design, at_grid = np.vander(x, 3), np.vander(grid, 3)
    solve = np.linalg.pinv(design)
    fitted = design @ solve @ y
    # Correct for the degrees of freedom used by the fit.
    residuals = (y - fitted) * np.sqrt(len(x) / (len(x) - 3))
    drawn = np.random.default_rng(0).choice(residuals, size=(_RESAMPLES, len(x)))
    curves = (fitted + drawn) @ solve.T @ at_grid.T
    low, high = np.percentile(curves, [2.5, 97.5], axis=0)
    return at_grid @ solve @ y, low, high


def _draw_pair(axes: Axes, cells: pd.DataFrame, colour: str | None) -> bool:
    """Draw the cells of a pair, and a curve if there are enough; return whether there are."""
    fits = bool(cells["time"].nunique() >= _FEWEST_POINTS)
    if fits:
        times = np.linspace(cells["time"].min(), cells["time"].max(), 101)
        acceptance = 100 * cells["draft_acceptance_rate"].to_numpy()
        curves = quadratic_band(cells["time"].to_numpy(), acceptance, times)
        fit, low, high = (curve.clip(0, 100) for curve in curves)
        shade = colour or style.GREY
        axes.fill_between(times, low, high, color=shade, alpha=0.15, linewidth=0)
        axes.plot(times, fit, color=shade, linewidth=scaled(1.1), alpha=0.8)
    for method, points in cells.groupby("method", sort=False):
        paint = _paint(str(method), colour)
        style.method_points(axes, points, str(method), "time", _ACCEPTANCE, **paint)
    return fits


def _paint(method: str, pair_colour: str | None, rim: bool = True) -> dict[str, Any]:
    """Return the colours of a method's marker and bars: the pair's, but DIVERSED's star is red."""
    method_colour = style.look(method).colour
    if pair_colour is None:
        return {"color": method_colour}
    if method != "diversed":
        return {"color": pair_colour}
    red = {"color": pair_colour, "markerfacecolor": method_colour}
    line = {"markeredgecolor": pair_colour, "markeredgewidth": scaled(0.6)}
    return red | (line if rim else {})
