"""Figures of saved results.

Each figure is a drawing function with the decorator ``figure``, in a module of this package or in a
file of the user's own. The function reads runs (``specbench.analysis.results.Results``) or folders
of trained heads, and returns a ``style.Drawing``: the figure and its data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench import plugins
from specbench.errors import UsageError, unknown

if TYPE_CHECKING:
    from specbench.analysis.figures.style import Drawing

RUNS, HEADS = "runs", "heads"  # sources of figures
#: Page styles, default first: a column or page of a paper, or a screen.
STYLES = ("paper", "screen")
#: The costs that ``pareto`` can draw quality against, and its defaults.
COSTS = ("time", "acceptance", "speedup")
AGAINST = COSTS[:2]


class FigureKind(NamedTuple):
    """A drawing function, as the decorator ``figure`` declares it."""

    name: str  # empty for one of the user's own
    source: str  # what it draws, RUNS or HEADS
    draw: Callable[..., Drawing]


def figure(name: str = "", source: str = RUNS) -> Callable[..., Callable[..., Drawing]]:
    """Declare a drawing function as a figure, drawn in the page style.

    Args:
        name: Its name on the command line and in file names; one of the user's own is named by its
            file and function instead.
        source: What the function takes: ``RUNS`` or ``HEADS``.
    """

    def declare(draw: Callable[..., Drawing]) -> Callable[..., Drawing]:
        from specbench.analysis.figures.style import paged

        on_page = paged(draw)
        return plugins.declare(on_page, FigureKind(name, source, on_page))

    return declare


@cache
def bundled_figures() -> dict[str, FigureKind]:
    """Return the figures of this package by name; matplotlib is imported only here."""
    return {kind.name: kind for kind in plugins.bundled(__name__, FigureKind, ())}


def load_figure(name: str) -> FigureKind:
    """Return a figure by its name or as ``FILE.py:FUNCTION``.

    Raises:
        UsageError: There is no such figure, or one of the user's own cannot be loaded.
    """
    if kind := bundled_figures().get(name):
        return kind
    plugin = plugins.find(name)
    if plugin is None:
        raise UsageError(unknown("figure", name, [*bundled_figures(), "FILE.py:FUNCTION"]))
    kind = plugins.declared(plugin.function, FigureKind)
    if kind is None:
        raise UsageError(
            f"{plugins.place(plugin.name, plugin.function)} is no figure: put @figure() of "
            "specbench.analysis.figures before it"
        )
    draw = kind.draw

    def drawn(*arguments: Any, **options: Any) -> Drawing:
        with plugins.user_code(draw):
            return draw(*arguments, **options)

    return kind._replace(draw=drawn)
