"""What all figures share: one look per method, one page layout, one way to be saved.

Colours are from Paul Tol's qualitative schemes, which keep apart under the common colour vision
deficiencies; markers keep methods apart without any colour.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.errors import RunError, UsageError


class Look(NamedTuple):
    """How a method appears in every figure."""

    label: str
    colour: str
    marker: str
    size: float  # of the marker, in points
    layer: int = 4  # points of a higher layer cover those of a lower one


LOOKS = {
    "autoregressive": Look("Autoregressive", "#222222", "o", 5.5),
    "sd": Look("SD", "#0077BB", "^", 6.5),
    "lossy": Look("Lossy SD", "#EE7733", "s", 5.0),
    "speccascade": Look("SpecCascade", "#009988", "D", 4.8),
    "static": Look("Static ensemble", "#6C6C80", "h", 4.2, layer=3),
    "diversed": Look("DIVERSED", "#CC3311", "*", 11.0, layer=5),
}
_OTHER_MARKERS = "XPvp<>d8"

#: Told apart from every method's colour, and from each other in greyscale.
PAIR_COLOURS = ("#332288", "#44AA99", "#AA4499", "#999933", "#882255", "#88CCEE")

QUALITY_LABELS = {
    "accuracy": "Accuracy (%)",
    "rouge2": "ROUGE-2 F1 (×100)",
    "pass@1": "pass@1 (%)",
}

GREY = "#555555"
_WHITE_RIM: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5}
_WIDTHS = {1: 3.4, 2: 5.2, 3: 6.6}  # inches by number of columns; a text width is about 7
_PAGE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "legend.frameon": False,
    "legend.handletextpad": 0.4,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "svg.fonttype": "path",
    "svg.hashsalt": "specbench",  # else every file gets other element ids
}


def look(method: str) -> Look:
    """The look of a method; one without a look of its own gets a stable magenta one."""
    marker = _OTHER_MARKERS[crc32(method.encode()) % len(_OTHER_MARKERS)]
    return LOOKS.get(method, Look(method, "#EE3377", marker, 5.5))


def paged(draw: Callable[[pd.DataFrame], Figure]) -> Callable[[pd.DataFrame], Figure]:
    """Give a drawing function the page's settings and leave matplotlib's own as they were."""

    @wraps(draw)
    def with_page(summary: pd.DataFrame) -> Figure:
        with matplotlib.rc_context(_PAGE):
            return draw(summary)

    return with_page


def panels(rows: int, columns: int, height: float, **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure of equal panels as wide as a column or a page of a paper.

    Args:
        rows: Rows of panels.
        columns: Columns of panels.
        height: Inches per row.
        **shared: ``sharex`` and ``sharey`` as for ``Figure.subplots``.

    Returns:
        The figure and its axes [rows, columns].
    """
    width = _WIDTHS.get(columns, 1.75 * columns)
    figure = Figure(figsize=(width, rows * height + 0.3), layout="constrained")
    FigureCanvasAgg(figure)  # lets texts be measured without pyplot and its global state
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


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
    return Line2D([], [], **(properties | _WHITE_RIM | entry | changes))


def points(axes: Axes, table: pd.DataFrame, x: str, y: str, **properties: Any) -> ErrorbarContainer:
    """Draw two columns of a wide table against each other, with their intervals if they have any.

    Args:
        axes: Where to draw.
        table: One row per point.
        x: Column, with an optional scale in front, as in ``100*quality``.
        y: The same.
        **properties: As for ``Axes.errorbar``.
    """
    (xs, x_errors), (ys, y_errors) = _with_errors(table, x), _with_errors(table, y)
    bars: dict[str, Any] = {"elinewidth": 0.7, "capsize": 0, "linestyle": "none"}
    drawn = axes.errorbar(xs, ys, yerr=y_errors, xerr=x_errors, **(bars | _WHITE_RIM | properties))
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


def only(table: pd.DataFrame, name: str, what: str) -> None:
    """Refuse a table in which a setting varies that a figure has no axis for.

    Raises:
        UsageError: The column ``name`` has several values.
    """
    values = sorted(table[name].dropna().unique())
    if len(values) > 1:
        shown = ", ".join(f"{value:g}" for value in values)
        raise UsageError(f"The runs hold several {what}s ({shown}); draw one of them at a time.")


def distinct(table: pd.DataFrame, name: str) -> list[Any]:
    """The values of a column in the order in which they appear."""
    return list(table[name].unique())


def ordered(methods: list[str]) -> list[str]:
    """Methods in the order of legends: as in ``LOOKS``, then the rest."""
    return sorted(methods, key=lambda method: [*LOOKS, method].index(method))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` (300 dpi) and ``name.svg`` into ``folder``, whole or not at all.

    The same figure gives the same bytes.

    Raises:
        RunError: The files cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_save_as(figure, folder / f"{name}.{kind}", kind) for kind in ("png", "svg")]
    except OSError as error:
        raise RunError(
            f"The figure cannot be written to {folder}: {error.strerror}; "
            "make room there or choose another folder."
        ) from error


def _save_as(figure: Figure, path: Path, kind: str) -> Path:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    metadata = {"Date": None} if kind == "svg" else {}
    try:
        with matplotlib.rc_context(_PAGE):
            figure.savefig(partial, format=kind, dpi=300, metadata=metadata)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _with_errors(table: pd.DataFrame, expression: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Values [n] and distances to their interval [2, n] of a column of a wide table."""
    scale, _, name = expression.rpartition("*")
    factor = float(scale or 1)
    value = factor * table[name].to_numpy(dtype=float)
    if f"{name}_low" not in table:
        return value, None
    low = factor * table[f"{name}_low"].to_numpy(dtype=float)
    high = factor * table[f"{name}_high"].to_numpy(dtype=float)
    return value, np.clip(np.stack([value - low, high - value]), 0, None)
