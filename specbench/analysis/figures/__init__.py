"""Figures of saved results.

Each figure is a drawing function with the decorator ``figure``, in a module of this package, where
``FIGURES`` names it, or in a file of the user's own. The function reads runs
(``specbench.analysis.results.Results``) or folders of trained heads, and returns a
``style.Drawing``: the figure and its data.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench import plugins
from specbench.errors import UsageError, require, unknown

if TYPE_CHECKING:
    from specbench.analysis.figures.style import Drawing

RUNS, HEADS = "runs", "heads"  # sources of figures
#: Page styles, default first: a column or page of a paper, or a screen.
STYLES = ("paper", "screen")
#: The costs that ``pareto`` can draw quality against, and its defaults.
COSTS = ("time", "acceptance", "speedup")
AGAINST = COSTS[:2]


class BundledFigure(NamedTuple):
    """The place of a drawing function, and what it reads."""

    module: str
    function: str
    source: str = RUNS


#: The figures of this package by name, which are imported when they are drawn.
FIGURES = {
    "acceptance-time": BundledFigure("acceptance", "draw_time"),
    "weights": BundledFigure("acceptance", "draw_weights"),
    "training": BundledFigure("heads", "draw_training", HEADS),
    "transfer": BundledFigure("heads", "draw_transfer"),
    "latency": BundledFigure("latency", "draw"),
    "pareto": BundledFigure("pareto", "draw"),
    "positions": BundledFigure("rounds", "draw_positions"),
}


def figure(source: str = RUNS) -> Callable[..., Callable[..., Drawing]]:
    """Declare a drawing function of ``RUNS`` or ``HEADS`` as a figure, drawn in the page style."""
    require(source in (RUNS, HEADS), f"@figure({source!r}): give RUNS, HEADS or nothing")

    def declare(draw: Callable[..., Drawing]) -> Callable[..., Drawing]:
        from specbench.analysis.figures.style import paged

        return plugins.declare(paged(draw), source)

    return declare


def source_of(name: str) -> str:
    """Return what a figure is drawn from, ``RUNS`` or ``HEADS``."""
    if bundled := FIGURES.get(name):
        return bundled.source
    return str(plugins.declared(_of_user(name), str))


def load_figure(name: str) -> Callable[..., Drawing]:
    """Return the drawing function of a figure; matplotlib is imported only here.

    Raises:
        UsageError: There is no such figure, or one of the user's own cannot be loaded.
    """
    if bundled := FIGURES.get(name):
        module = import_module(f"{__name__}.{bundled.module}")
        function: Callable[..., Drawing] = getattr(module, bundled.function)
        return function
    draw = _of_user(name)

    def drawn(*arguments: Any, **options: Any) -> Drawing:
        with plugins.user_code(draw):
            return draw(*arguments, **options)

    return drawn


def _of_user(name: str) -> Callable[..., Drawing]:
    plugin = plugins.find(name)
    if plugin is None:
        raise UsageError(unknown("figure", name, [*FIGURES, "FILE.py:FUNCTION"]))
    if plugins.declared(plugin.function, str) is None:
        raise UsageError(
            f"{plugins.place(plugin.name, plugin.function)} is no figure: put @figure() of "
            "specbench.analysis.figures before it"
        )
    return plugin.function
