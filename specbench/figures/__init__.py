"""Figures of saved results.

Each figure is a drawing function with an entry in ``FIGURES``. The function reads runs
(``specbench.results.Results``) or folders of trained heads, and returns a ``style.Drawing``: the
figure and its data.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.figures.style import Drawing

RUNS, HEADS = "runs", "heads"  # sources of figures
#: Page styles, default first: a column or page of a paper, or a screen.
STYLES = ("paper", "screen")
#: The costs that ``pareto`` can draw quality against, and its defaults.
COSTS = ("time", "acceptance", "speedup")
AGAINST = COSTS[:2]


class Registered(NamedTuple):
    """The location of a drawing function, and its source."""

    function: str
    source: str = RUNS


#: Figures by their name on the command line and in file names.
FIGURES = {
    "pareto": Registered("pareto:draw"),
    "acceptance-time": Registered("acceptance:draw_time"),
    "weights": Registered("acceptance:draw_weights"),
    "positions": Registered("rounds:draw_positions"),
    "accepted-length": Registered("rounds:draw_lengths"),
    "timeline": Registered("rounds:draw_timeline"),
    "theory": Registered("theory:draw"),
    "transfer": Registered("heads:draw_transfer"),
    "training": Registered("heads:draw_training", HEADS),
}


def require_figure(name: str) -> None:
    """Raise ``UsageError`` if there is no such figure."""
    if name not in FIGURES:
        raise UsageError(f"There is no figure {name!r}; choose from {', '.join(FIGURES)}.")


def load_figure(name: str) -> Callable[..., Drawing]:
    """Return the drawing function of a figure; matplotlib is imported only here.

    Raises:
        UsageError: There is no such figure.
    """
    require_figure(name)
    module, function = FIGURES[name].function.split(":")
    draw: Callable[..., Drawing] = getattr(import_module(f"{__name__}.{module}"), function)
    return draw
