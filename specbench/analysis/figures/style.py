"""Shared by all figures: method styles, page styles, panels, points, data tables and files.

Colours follow Paul Tol's qualitative schemes, which remain distinguishable under common colour
vision deficiencies; markers distinguish methods without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec
from zlib import crc32

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from PIL import Image

from specbench.analysis.figures import STYLES
from specbench.analysis.tables.shown import ENDS
from specbench.analysis.tables.table import to_csv
from specbench.errors import UsageError, printable, unknown
from specbench.files import make_folder, write_atomically
from specbench.methods.registry import METHODS
from specbench.plugins import short_name

#: A matplotlib marker: a letter, (corners, 1 for a star, angle), or the corners themselves.
Marker = str | tuple[int, int, int] | tuple[tuple[float, float], ...]
_ANGLE: Marker = ((-1, -1), (1, -1), (1, -0.2), (-0.2, -0.2), (-0.2, 1), (-1, 1))
_BAR: Marker = ((-0.4, -1), (0.4, -1), (0.4, 1), (-0.4, 1))
_SLANTED: Marker = ((-1, -0.6), (0.4, -0.6), (1, 0.6), (-0.4, 0.6))
_LAMP: Marker = ((-1, -0.7), (1, -0.7), (0.3, 0.7), (-0.3, 0.7))
_GLASS: Marker = ((-1, -1), (1, -1), (-1, 1), (1, 1))
_BOW: Marker = ((-1, -1), (-1, 1), (1, -1), (1, 1))
_WINGS: Marker = ((-1, -0.8), (0, 1), (1, -0.8), (0, 0))


class Look(NamedTuple):
    """The style of a method in all figures."""

    colour: str
    marker: Marker
    size: float  # of the marker, in points
    layer: int = 4  # higher layers cover lower ones
    open: bool = False  # a white marker with a coloured edge


LOOKS = {
    "autoregressive": Look("#222222", "o", 5.5),
    "sd": Look("#0077BB", "^", 6.5, layer=6),
    "lossy": Look("#EE7733", "s", 5.0),
    "speccascade": Look("#009988", "D", 4.8),
    "static": Look("#6C6C80", "h", 4.2, layer=3),
    "diversed": Look("#CC3311", "*", 11.0, layer=5),
    "sd-adaptive": Look("#2E8BC0", "<", 6.5),
    "block": Look("#22A0C8", "v", 6.5),
    "mentored": Look("#994F00", _ANGLE, 6.0),
    "typical": Look("#AA9922", "P", 6.0),
    "cactus": Look("#228833", "X", 6.0),
    "sharpened": Look("#4488CC", _BAR, 6.5, layer=3),
    "cooled": Look("#3366AA", (4, 1, 45), 6.2, layer=3),
    "match": Look("#66AADD", _SLANTED, 7.0),
    "threshold": Look("#B0553C", (3, 1, 0), 7.0),
    "relaxed": Look("#8C6BB1", _LAMP, 6.5),
    "mars": Look("#5A9E6F", (6, 1, 30), 7.0),
    "ears": Look("#C77CBA", _GLASS, 6.5),
    "entropy-verify": Look("#D9A441", _BOW, 6.5),
    "fly": Look("#7A6FBE", _WINGS, 6.5),
    "synthetic": Look("#999999", ">", 6.0),
    "gated": Look("#AA3377", "d", 6.0),
}
# For methods without a look, such as the user's own; filled, since the edge is white.
_OTHER_MARKERS: tuple[Marker, ...] = ("H", (4, 1, 0), (6, 1, 0), (7, 0, 0), (8, 1, 0))
_OTHER_COLOURS = ("#EE3377", "#117733", "#DDAA33", "#332288", "#88CCEE", "#882255", "#44AA99")

#: Distinct from the colours of bundled methods, and from each other in greyscale.
PAIR_COLOURS = ("#332288", "#44AA99", "#AA4499", "#999933", "#882255", "#88CCEE")

GREY = "#555555"
MOST_RUNS = 3  # of a panel, told apart by their markers: whole, open, or with a dark edge
MOST_BARS = 200  # with more points, error bars are omitted
_LONGEST_LABEL = 60  # characters
_LEGEND_SHARE = 0.25  # largest share of a figure's height
_LEAST_WIDTH = 1.5  # inches per column
_LEAST_SHARE = 0.85  # of the width that a figure asks for
_WIDTHS = {1: 3.4, 2: 5.2, 3: 6.6}  # inches by number of columns; a page's text width is about 7


class Drawing(NamedTuple):
    """A figure and its data: a row per mark, with intervals in ``_low`` and ``_high`` columns."""

    figure: Figure
    data: pd.DataFrame


class DisplayedFigure(Figure):
    """A figure that a notebook displays although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        return rendered(self, "png")


class Page(NamedTuple):
    """A page style: all sizes are those of ``paper`` times ``scale``."""

    scale: float
    stretch: float  # additional factor of widths
    dpi: int
    width: float | None = None  # inches, in place of the width that fits the columns
    settings: Any = None  # of a style file of the user's, over those of all figures


PAPER, SCREEN = STYLES
PAGES = {PAPER: Page(1.0, 1.0, 300), SCREEN: Page(1.6, 1.12, 150)}
_page = ContextVar("page", default=PAGES[PAPER])
#: The methods without a look that a figure shows, in order.
_arms: ContextVar[Sequence[str]] = ContextVar("arms", default=())

_SETTINGS = Path(__file__).with_name("specbench.mplstyle")
_TICK_POINTS, _PAD_INCHES = 7.0, 0.042  # points, inches
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
    "legend.fontsize": 6.8,
}
Given = ParamSpec("Given")

#: The canvas of each file type, and the date to omit so that files are reproducible.
_CANVASES: dict[str, tuple[type, dict[str, Any]]] = {
    "png": (FigureCanvasAgg, {}),
    "svg": (FigureCanvasSVG, {"Date": None}),
    "pdf": (FigureCanvasPdf, {"CreationDate": None}),
}


def scaled(size: float) -> float:
    """Convert a size on ``paper``, in points or inches, to the current page style."""
    return size * _page.get().scale


def look(method: str) -> Look:
    """Return the style of a method; one without an entry has a stable marker and colour.

    Among the arms of the runs that a figure shows, these are others for each arm.
    A server that verifies by a method, such as ``vllm-sd``, has its colour and marker, but is open.
    """
    server, dash, rule = method.partition("-")
    if dash and not {server, method} & {*LOOKS, *METHODS} and rule in LOOKS:
        return look(rule)._replace(open=True)
    arms = _arms.get()
    number = arms.index(method) if method in arms else crc32(short_name(method).encode())
    colour = _OTHER_COLOURS[number % len(_OTHER_COLOURS)]
    generated = Look(colour, _OTHER_MARKERS[number % len(_OTHER_MARKERS)], 7.0)
    style = LOOKS.get(method, generated)
    return style._replace(size=scaled(style.size))


@contextmanager
def page(style: str, width: float | None = None) -> Iterator[None]:
    """Use one of ``STYLES`` inside the context, or ``paper`` with a style file of matplotlib's.

    Args:
        style: One of ``STYLES``, or the path of a style file of matplotlib's.
        width: Inches, in place of those of the style.

    Raises:
        UsageError: There is no such style or file.
    """
    settings = None
    if style not in PAGES:
        if not style.endswith(".mplstyle"):
            raise UsageError(f"{unknown('style', style, STYLES)}, or give a FILE.mplstyle")
        try:
            settings = matplotlib.rc_params_from_file(style, use_default_template=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"--style {style} cannot be read: {error}") from error
    before = _page.set(PAGES.get(style, PAGES[PAPER])._replace(width=width, settings=settings))
    try:
        yield
    finally:
        _page.reset(before)


def paged(draw: Callable[Given, Drawing]) -> Callable[Given, Drawing]:
    """Decorate a drawing function to use the page style, without changing matplotlib's settings."""

    @wraps(draw)
    def with_page(*arguments: Given.args, **named: Given.kwargs) -> Drawing:
        sizes = {name: scaled(size) for name, size in _POINTS.items()}
        arms = []
        with suppress(AttributeError, UsageError, IndexError):  # of heads, or without a summary
            arms = distinct(arguments[0].cells, "method")  # type: ignore[attr-defined]
        before = _arms.set([method for method in arms if method not in LOOKS])
        try:
            shared = matplotlib.rc_context(sizes | {"figure.dpi": _page.get().dpi}, fname=_SETTINGS)
            with shared, matplotlib.rc_context(_page.get().settings):
                drawing = draw(*arguments, **named)
                settle(drawing.figure)
        finally:
            _arms.reset(before)
        return drawing

    return with_page


def settle(figure: Figure) -> None:
    """Fix the layout of a figure, so that texts can be measured and all files are alike."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine("none")


def panels(
    rows: int, columns: int, height: float, width: float | None = None, **shared: Any
) -> tuple[Figure, np.ndarray]:
    """Make a figure and its axes [rows, columns], as wide as a column or page of a paper.

    ``height`` is inches per row, ``width`` those of the figure on ``paper``, which is hardly made
    narrower, and ``shared`` is passed to ``Figure.subplots``.
    """
    style = _page.get()
    least = _LEAST_SHARE * width if width else _LEAST_WIDTH * columns
    if style.width and style.width < least:
        raise UsageError(
            f"--width {style.width:g} is too narrow for {columns} panels beside each other: give "
            f"at least {least:g} inches, or draw fewer tasks with --task"
        )
    natural = width or _WIDTHS.get(columns, 1.75 * columns) * style.stretch
    size = (style.width or scaled(natural), scaled(rows * height + 0.3))
    pad = scaled(_PAD_INCHES)
    figure = DisplayedFigure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=pad, h_pad=pad))
    FigureCanvasAgg(figure)  # needed to measure texts without pyplot
    grid = figure.subplots(rows, columns, squeeze=False, **shared)
    for axes in grid.flat:  # per axes, since saving a figure creates its ticks again
        axes.tick_params(labelsize=scaled(_TICK_POINTS))
    return figure, grid


def legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Add a legend of two or more entries below all panels, with as few rows as fit the width.

    The panels of a figure with a long legend are higher, so that it has a quarter of the height.
    """
    for handle in handles:
        if len(label := str(handle.get_label())) > _LONGEST_LABEL:  # its ends tell names apart
            handle.set_label(f"{label[: _LONGEST_LABEL // 2 - 1]}…{label[-_LONGEST_LABEL // 2 :]}")
    for rows in range(1, len(handles) + 1 if len(handles) > 1 else 1):
        columns = -(-len(handles) // rows)
        drawn = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        fits = drawn.get_window_extent().width <= 0.94 * figure.bbox.width
        if fits or rows == len(handles):
            inches = drawn.get_window_extent().height / figure.dpi
            height = figure.get_figheight() + inches * (1 - 1 / rows)
            figure.set_figheight(max(height, inches / _LEGEND_SHARE))
            return
        drawn.remove()


def run_marker(colour: str, run: int) -> dict[str, Any]:
    """Return the face and the edge of markers of a panel's first, second or third run."""
    edges: Sequence[dict[str, Any]] = (
        {"markeredgecolor": "white", "markeredgewidth": scaled(0.5)},
        {"markeredgecolor": colour, "markeredgewidth": scaled(0.9), "markerfacecolor": "white"},
        {"markeredgecolor": "black", "markeredgewidth": scaled(0.9)},
    )
    return edges[run]


def handle(method: str, **changes: Any) -> Line2D:
    """Return a method's legend entry, with the name that tables and sentences use."""
    entry = {"label": short_name(method), "linestyle": "none"}
    return Line2D([], [], **(_marker(method) | entry | changes))


def points(axes: Axes, table: pd.DataFrame, x: str, y: str, **properties: Any) -> None:
    """Plot column ``y`` against column ``x`` with intervals.

    More than ``MOST_BARS`` points are drawn without error bars. In SVG files, the id of the
    markers' group ends in the rows' labels. ``x`` and ``y`` may start with a scale, as in
    ``100*quality``; ``properties`` are passed to ``Axes.errorbar``.
    """
    (xs, *x_ends), (ys, *y_ends) = values(table, x), values(table, y)
    x_errors, y_errors = _errors(xs, *x_ends), _errors(ys, *y_ends)
    bars: dict[str, Any] = {"elinewidth": scaled(0.7), "capsize": 0, "linestyle": "none"}
    options = bars | run_marker("", 0) | properties
    drawn = axes.errorbar(xs, ys, yerr=y_errors, xerr=x_errors, **options)
    for bar in drawn.lines[2]:
        bar.set_alpha(0.45)
    number = sum(len(panel.containers) for panel in axes.figure.axes)
    drawn.lines[0].set_gid("-".join(map(str, ["points", number, *table.index])))


def method_points(
    axes: Axes, table: pd.DataFrame, method: str, x: str, y: str, run: int = 0, **changes: Any
) -> None:
    """Draw ``points`` of a panel's run, counted from 0, in a method's style, with changes."""
    base = {"label": method, "zorder": look(method).layer}
    points(axes, table, x, y, **(_marker(method, run) | base | changes))


def values(table: pd.DataFrame, expression: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values and ends [n], NaN without interval, of a column with an optional scale."""
    scale, _, name = expression.rpartition("*")
    blank = pd.Series(np.nan, index=table.index)
    value, low, high = (
        float(scale or 1) * table.get(name + end, blank).to_numpy(dtype=float) for end in ENDS
    )
    return value, low, high


def distinct(table: pd.DataFrame, name: str) -> list[Any]:
    """Return the distinct values of a column in order of appearance."""
    return list(table[name].unique())


def ordered(methods: Sequence[str]) -> list[str]:
    """Return methods in legend order: that of ``LOOKS``, then the rest."""
    return sorted(methods, key=lambda method: [*LOOKS, method].index(method))


def save(drawing: Drawing, folder: Path, name: str) -> list[Path]:
    """Write a figure as ``name.png``, ``.svg`` and ``.pdf``, and its data as ``name.csv``."""
    contents = {kind: rendered(drawing.figure, kind) for kind in _CANVASES}
    contents["csv"] = to_csv(drawing.data, "%.6g").encode()
    make_folder(folder)
    paths = {folder / f"{name}.{kind}": content for kind, content in contents.items()}
    for path, content in paths.items():
        write_atomically(path, content)
    return list(paths)


def rendered(figure: Figure, kind: str, salt: str = "specbench") -> bytes:
    """Render a figure with a fixed layout as ``png``, ``svg`` or ``pdf``.

    ``savefig`` is not used, since it would change the layout. ``salt`` makes the ids of an SVG
    unique on a page with several. A PNG has a palette of 256 colours and so a
    third of the bytes; no channel of the bundled figures moves by more than 14 of 255.
    """
    file = BytesIO()
    canvas, undated = _CANVASES[kind]
    dpi = figure.dpi
    with matplotlib.rc_context({"svg.hashsalt": salt}, fname=_SETTINGS):
        getattr(canvas(figure), f"print_{kind}")(file, metadata=undated)
    figure.set_dpi(dpi)  # vector canvases change it
    if kind == "png":
        image = Image.open(file)
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
        file = BytesIO()
        palette.save(file, "PNG", dpi=image.info["dpi"], optimize=True)
    content = file.getvalue()
    return printable(content.decode()).encode() if kind == "svg" else content  # XML has no controls


def _marker(method: str, run: int = 0) -> dict[str, Any]:
    method_look = look(method)
    return {
        "color": method_look.colour,
        "marker": method_look.marker,
        "markersize": method_look.size,
        **run_marker(method_look.colour, run or method_look.open),
    }


def _errors(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    """Return the lengths of error bars [2, n], or None if bars are omitted."""
    if len(value) > MOST_BARS or np.isnan(low).all():
        return None
    distances: np.ndarray = np.stack([value - low, high - value])
    return distances.clip(min=0)
