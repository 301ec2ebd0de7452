"""Draft acceptance against total time: what a percentage point of acceptance buys.

After arXiv 2604.07622. Pairs differ in speed by orders of magnitude, so time is normalised
per pair, task, engine and batch size: 0 is the fastest setting drawn, 1 the slowest. Engines are
measured in runs of their own, at times when the machine may have had other work beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.cells import blocks, data, title
from specbench.figures.style import Drawing, scaled
from specbench.results import Results

Floats = NDArray[np.float64]

_FEWEST_POINTS = 6  # three coefficients, and as many residuals to judge them by
_RESAMPLES = 2000
_ACCEPTANCE = "100*draft_acceptance_rate"


@style.paged
def draw(results: Results) -> Drawing:
    """Draw acceptance against normalised time: one column per task, one colour per pair.

    Each point is one method in one setting; a quadratic with its 95 % band is fitted through the
    points of a pair where there are enough of them. Engines and batch sizes are drawn below one
    another.

    Args:
        results: Runs.

    Raises:
        UsageError: Nothing in them drafts.
    """
    table = results.cells.dropna(subset=["draft_acceptance_rate", "seconds_per_sample"])
    if table.empty:
        raise UsageError("Nothing to draw: no method of these runs drafts; run sd or another one.")
    table = table.assign(time=_normalised(table))

    pairs, tasks = style.distinct(table, "pair"), style.distinct(table, "task")
    colours = _pair_colours(pairs)
    apart = blocks(table, ["engine", "batch_size"])
    figure, grid = style.panels(len(apart), len(tasks), height=2.0, sharey=True)
    for (setting, rows), line in zip(apart, grid, strict=True):
        for task, axes in zip(tasks, line, strict=True):
            for pair, colour in colours.items():
                _draw_pair(axes, rows[(rows["task"] == task) & (rows["pair"] == pair)], colour)
            axes.set_title(title(task, setting))
            axes.set_xlim(-0.06, 1.06)
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        line[0].set_ylabel("Accepted / drafted (%)")
    for axes in grid[-1]:
        axes.set_xlabel("Total time (normalised)")
    style.legend(figure, [*_pair_handles(colours), *_method_handles(table, len(pairs) > 1)])
    behind = data(table, "time", "seconds_per_sample", draft_acceptance=_ACCEPTANCE)
    return Drawing(figure, behind)


def quadratic_band(x: Floats, y: Floats, at: Floats) -> tuple[Floats, Floats, Floats]:
    """Least-squares quadratic with a 95 % band from a bootstrap of its residuals.

    Args:
        x: [points], at least four.
        y: [points].
        at: [m] where to evaluate.

    Returns:
        The fit and the lower and upper edge of its band, each [m].
    """
    design, wanted = np.vander(x, 3), np.vander(at, 3)
    solve = np.linalg.pinv(design)
    fitted = design @ solve @ y
    # Least squares shrinks residuals; this gives them back the variance of the noise.
    residuals = (y - fitted) * np.sqrt(len(x) / (len(x) - 3))
    drawn = np.random.default_rng(0).choice(residuals, size=(_RESAMPLES, len(x)))
    curves = (fitted + drawn) @ solve.T @ wanted.T
    low, high = np.percentile(curves, [2.5, 97.5], axis=0)
    return wanted @ solve @ y, low, high


def _normalised(table: pd.DataFrame) -> pd.Series:
    """Seconds per sample mapped to 0 ... 1 within each pair, task, engine and batch size."""
    seconds = table.groupby(["pair", "task", "engine", "batch_size"])["seconds_per_sample"]
    fastest, slowest = seconds.transform("min"), seconds.transform("max")
    return (table["seconds_per_sample"] - fastest) / (slowest - fastest).replace(0, 1)


def _pair_colours(pairs: list[str]) -> dict[str, str | None]:
    """A colour per pair; a pair that is alone needs none, and methods keep their own colours."""
    if len(pairs) == 1:
        return {pairs[0]: None}
    return {pair: style.PAIR_COLOURS[i % len(style.PAIR_COLOURS)] for i, pair in enumerate(pairs)}


def _paint(method: str, pair_colour: str | None, rim: bool = True) -> dict[str, Any]:
    """Colours of a method's marker and bars: the pair's, but the star stays red."""
    own = style.look(method).colour
    if pair_colour is None:
        return {"color": own}
    if method != "diversed":
        return {"color": pair_colour}
    red = {"color": pair_colour, "markerfacecolor": own}
    line = {"markeredgecolor": pair_colour, "markeredgewidth": scaled(0.6)}
    return red | (line if rim else {})


def _pair_handles(colours: Mapping[str, str | None]) -> list[Line2D]:
    """An entry of the legend per pair, where they have colours."""
    width = scaled(1.5)
    return [
        Line2D([], [], color=colour, linewidth=width, label=pair)
        for pair, colour in colours.items()
        if colour is not None
    ]


def _method_handles(table: pd.DataFrame, grey: bool) -> list[Line2D]:
    """An entry of the legend per method, grey where colours tell pairs apart."""
    colour = style.GREY if grey else None
    return [
        style.handle(method, **_paint(method, colour, rim=False))
        for method in style.ordered(style.distinct(table, "method"))
    ]


def _draw_pair(axes: Axes, cells: pd.DataFrame, colour: str | None) -> None:
    if cells["time"].nunique() >= _FEWEST_POINTS:
        at = np.linspace(cells["time"].min(), cells["time"].max(), 101)
        curves = quadratic_band(
            cells["time"].to_numpy(), 100 * cells["draft_acceptance_rate"].to_numpy(), at
        )
        fit, low, high = (curve.clip(0, 100) for curve in curves)
        shade = colour or style.GREY
        axes.fill_between(at, low, high, color=shade, alpha=0.15, linewidth=0)
        axes.plot(at, fit, color=shade, linewidth=scaled(1.1), alpha=0.8)
    for method, points in cells.groupby("method", sort=False):
        paint = _paint(str(method), colour)
        style.method_points(axes, points, str(method), "time", _ACCEPTANCE, **paint)
