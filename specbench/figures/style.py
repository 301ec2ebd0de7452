"""What all figures share: one look per method and per part of a round, and two styles of page.

Colours are from Paul Tol's qualitative schemes or near them, which keep apart under the common
colour vision deficiencies; markers keep methods apart without any colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, ParamSpec
from zlib import crc32

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from specbench.errors import UsageError
from specbench.figures import STYLES

#: As matplotlib has it: a letter, or corners, 1 for a star, and the angle of a polygon.
Marker = str | tuple[int, int, int]


class Look(NamedTuple):
    """How a method appears in every figure."""

    label: str
    colour: str
    marker: Marker
    size: float  # of the marker, in points
    layer: int = 4  # points of a higher layer cover those of a lower one


LOOKS = {
    "autoregressive": Look("Autoregressive", "#222222", "o", 5.5),
    "sd": Look("SD", "#0077BB", "^", 6.5),
    "lossy": Look("Lossy SD", "#EE7733", "s", 5.0),
    "speccascade": Look("SpecCascade", "#009988", "D", 4.8),
    "static": Look("Static ensemble", "#6C6C80", "h", 4.2, layer=3),
    "diversed": Look("DIVERSED", "#CC3311", "*", 11.0, layer=5),
    "sd-adaptive": Look("SD, adaptive N", "#2E8BC0", "<", 6.5),
    "block": Look("Block verification", "#22A0C8", "v", 6.5),
    "mentored": Look("Mentored", "#994F00", "p", 6.0),
    "typical": Look("Typical acceptance", "#AA9922", "P", 6.0),
    "cactus": Look("Cactus", "#228833", "X", 6.0),
    "sharpened": Look("SD, sharpened target", "#4488CC", "8", 5.5, layer=3),
    "gated": Look("Gated static", "#9090A8", "d", 5.5, layer=3),
    "gated-diversed": Look("Gated DIVERSED", "#7F1D0C", ">", 6.5),
}
# Filled, since the edge is white, and of no other method.
_OTHER_MARKERS: tuple[Marker, ...] = ("H", (4, 1, 0), (6, 1, 0), (7, 0, 0), (8, 1, 0))

#: Told apart from every method's colour, and from each other in greyscale.
PAIR_COLOURS = ("#332288", "#44AA99", "#AA4499", "#999933", "#882255", "#88CCEE")

QUALITY_LABELS = {
    "accuracy": "Accuracy (%)",
    "rouge2": "ROUGE-2 F1 (×100)",
    "pass@1": "pass@1 (%)",
}

#: Colours of the parts of a round, in the order in which they come, and of what is left of it.
PARTS = {"draft": "#4477AA", "verify": "#DDAA33", "accept": "#BB5566", "other": "#BBBBBB"}

GREY = "#555555"
MOST_BARS = 200
_WIDTHS = {1: 3.4, 2: 5.2, 3: 6.6}  # inches by number of columns; a text width is about 7


class Drawing(NamedTuple):
    """A figure with what is drawn in it: a row per mark, an interval as ``_low`` and ``_high``."""

    figure: Figure
    data: pd.DataFrame


class Page(NamedTuple):
    """A style of page: all sizes are those of ``paper`` times ``scale``."""

    scale: float
    stretch: float  # of widths, beyond the scale
    dpi: int


PAPER, SCREEN = STYLES
PAGES = {PAPER: Page(1.0, 1.0, 300), SCREEN: Page(1.6, 1.12, 150)}
_page = ContextVar("page", default=PAGES[PAPER])

_PLAIN: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "legend.frameon": False,
    "legend.handletextpad": 0.4,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
}
_TICK_POINTS, _PAD_INCHES = 7.0, 0.042
_POINTS: dict[Any, float] = {
    "font.size": 7.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
}
Given = ParamSpec("Given")


def scaled(size: float) -> float:
    """A size in points or inches, as ``paper`` has it, on the page that is drawn."""
    return size * _page.get().scale


def look(method: str) -> Look:
    """The look of a method; one without a look of its own gets a stable magenta one."""
    marker = _OTHER_MARKERS[crc32(method.encode()) % len(_OTHER_MARKERS)]
    seen = LOOKS.get(method, Look(method, "#EE3377", marker, 7.0))
    return seen._replace(size=scaled(seen.size))


@contextmanager
def page(style: str) -> Iterator[None]:
    """Draw in one of ``STYLES`` while the context lasts; ``paper`` is drawn in without one."""
    before = _page.set(PAGES[style])
    try:
        yield
    finally:
        _page.reset(before)


def paged(draw: Callable[Given, Drawing]) -> Callable[Given, Drawing]:
    """Give a drawing function the page's settings and leave matplotlib's own as they were."""

    @wraps(draw)
    def with_page(*arguments: Given.args, **named: Given.kwargs) -> Drawing:
        sizes = {name: scaled(size) for name, size in _POINTS.items()}
        with matplotlib.rc_context(_PLAIN | sizes | {"figure.dpi": _page.get().dpi}):
            drawing = draw(*arguments, **named)
            settle(drawing.figure)
        return drawing

    return with_page


def settle(figure: Figure) -> None:
    """Lay a figure out once and for all, so that texts can be measured and files agree."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine("none")


def panels(rows: int, columns: int, height: float, **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure of equal panels as wide as a column or a page of a paper.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        height: Inches per row, on paper.
        **shared: ``sharex`` and ``sharey`` as for ``Figure.subplots``.

    Returns:
        The figure and its axes [rows, columns].
    """
    width = _WIDTHS.get(columns, 1.75 * columns) * _page.get().stretch
    size = (scaled(width), scaled(rows * height + 0.3))
    pad = scaled(_PAD_INCHES)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=pad, h_pad=pad))
    FigureCanvasAgg(figure)  # lets texts be measured without pyplot and its global state
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in grid.flat:  # a size of its own, since ticks are placed anew as a figure is saved
        axes.tick_params(labelsize=scaled(_TICK_POINTS))
    return figure, grid


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend above all panels, in as few rows as the figure's width allows."""
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        drawn = figure.legend(handles=handles, loc="outside upper center", ncols=columns)
        if drawn.get_window_extent().width <= 0.94 * figure.bbox.width:
            return
        drawn.remove()


def handle(method: str, **changes: Any) -> Line2D:
    """A method's entry in a legend."""
    seen = look(method)
    properties: dict[str, Any] = {
        "color": seen.colour,
        "marker": seen.marker,
        "markersize": seen.size,
    }
    entry = {"label": seen.label, "linestyle": "none"}
    return Line2D([], [], **(properties | _white_rim() | entry | changes))


def points(axes: Axes, table: pd.DataFrame, x: str, y: str, **properties: Any) -> ErrorbarContainer:
    """Draw two columns of a wide table against each other, with their intervals if they have any.

    A cloud of more than ``MOST_BARS`` points has none, as they would cover each other.

    Args:
        axes: Where to draw.
        table: One row per point.
        x: Column, with an optional scale in front, as in ``100*quality``.
        y: The same.
        **properties: As for ``Axes.errorbar``.
    """
    (xs, x_errors), (ys, y_errors) = _with_errors(table, x), _with_errors(table, y)
    if len(xs) > MOST_BARS:
        x_errors = y_errors = None
    bars: dict[str, Any] = {"elinewidth": scaled(0.7), "capsize": 0, "linestyle": "none"}
    given = bars | _white_rim() | properties
    drawn = axes.errorbar(xs, ys, yerr=y_errors, xerr=x_errors, **given)
    for bar in drawn.lines[2]:
        bar.set_alpha(0.45)
    return drawn


def method_points(
    axes: Axes, table: pd.DataFrame, method: str, x: str, y: str, **changes: Any
) -> None:
    """``points`` in a method's look, with changes."""
    seen = look(method)
    own = {"color": seen.colour, "marker": seen.marker, "markersize": seen.size}
    points(axes, table, x, y, **(own | {"label": method, "zorder": seen.layer} | changes))


def values(table: pd.DataFrame, expression: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column of a wide table, with an optional scale in front: values, lower and upper ends.

    Each is [n]; the ends are NaN where there is no interval.
    """
    scale, _, name = expression.rpartition("*")
    blank = pd.Series(np.nan, index=table.index)
    value, low, high = (
        float(scale or 1) * table.get(name + end, blank).to_numpy(dtype=float)
        for end in ("", "_low", "_high")
    )
    return value, low, high


def quality_label(metric: str) -> str:
    """The label of an axis of quality, whose values are in percent."""
    return QUALITY_LABELS.get(metric, f"{metric} (×100)")


def only(table: pd.DataFrame, name: str, what: str) -> None:
    """Refuse a table in which a setting varies that a figure has no axis for.

    Raises:
        UsageError: The column ``name`` has several values.
    """
    values = sorted(table[name].dropna().unique())
    if len(values) > 1:
        shown = ", ".join(f"{value:g}" for value in values)
        choice = "one by --draft-length" if name == "draft_length" else f"runs of one {what}"
        raise UsageError(f"The runs hold several {what}s ({shown}): choose {choice}.")


def distinct(table: pd.DataFrame, name: str) -> list[Any]:
    """The values of a column in the order in which they appear."""
    return list(table[name].unique())


def ordered(methods: list[str]) -> list[str]:
    """Methods in the order of legends: as in ``LOOKS``, then the rest."""
    return sorted(methods, key=lambda method: [*LOOKS, method].index(method))


def _white_rim() -> dict[str, Any]:
    return {"markeredgecolor": "white", "markeredgewidth": scaled(0.5)}


def _with_errors(table: pd.DataFrame, expression: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Values [n] and distances to their interval [2, n] of a column of a wide table."""
    value, low, high = values(table, expression)
    if np.isnan(low).all():
        return value, None
    return value, np.clip(np.stack([value - low, high - value]), 0, None)
