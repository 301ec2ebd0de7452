"""Figures drawn from summaries on disk.

A figure is one module with ``draw(summary) -> Figure`` and one line in ``FIGURES``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from specbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Name on the command line and in file names -> the function that draws it.
FIGURES = {
    "pareto": "specbench.figures.pareto:draw",
    "acceptance-time": "specbench.figures.acceptance_time:draw",
    "weights": "specbench.figures.weights:draw",
    "transfer": "specbench.figures.transfer:draw",
}


def load_figure(name: str) -> Callable[[pd.DataFrame], Figure]:
    """The drawing function of a figure; matplotlib is imported here and not before.

    Raises:
        UsageError: There is no such figure.
    """
    if name not in FIGURES:
        raise UsageError(f"There is no figure {name!r}; choose from {', '.join(FIGURES)}.")
    module, function = FIGURES[name].split(":")
    draw: Callable[[pd.DataFrame], Figure] = getattr(import_module(module), function)
    return draw
