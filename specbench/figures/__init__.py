"""Figures of results on disk.

A figure is one module with a function that returns a ``style.Drawing``, the figure and the data
behind it, and one line in ``FIGURES``. It draws from runs (``specbench.results.Results``, of whose
tables it reads those it needs) or from trained heads (their folders).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.figures.style import Drawing

RUNS, HEADS = "runs", "heads"  # what figures are drawn from
#: Styles of page, the default first: a column or a page of a paper, or a screen.
STYLES = ("paper", "screen")
#: What ``pareto`` can set quality against, and what it does.
PRICES = ("time", "acceptance", "speedup")
AGAINST = PRICES[:2]


class Registered(NamedTuple):
    """Where the function of a figure is, and what it takes."""

    function: str
    source: str = RUNS


#: Name on the command line and in file names -> the figure.
FIGURES = {
    "pareto": Registered("specbench.figures.pareto:draw"),
    "acceptance-time": Registered("specbench.figures.acceptance_time:draw"),
    "weights": Registered("specbench.figures.weights:draw"),
    "accepted-length": Registered("specbench.figures.accepted_length:draw"),
    "timeline": Registered("specbench.figures.timeline:draw"),
    "theory": Registered("specbench.figures.theory:draw"),
    "transfer": Registered("specbench.figures.transfer:draw"),
    "training": Registered("specbench.figures.training:draw", HEADS),
}


def load_figure(name: str) -> Callable[..., Drawing]:
    """The drawing function of a figure; matplotlib is imported here and not before.

    Raises:
        UsageError: There is no such figure.
    """
    if name not in FIGURES:
        raise UsageError(f"There is no figure {name!r}; choose from {', '.join(FIGURES)}.")
    module, function = FIGURES[name].function.split(":")
    draw: Callable[..., Drawing] = getattr(import_module(module), function)
    return draw
