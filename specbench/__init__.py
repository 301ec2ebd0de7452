"""specbench measures speculative decoding: speed, acceptance and quality, on one engine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

__version__ = "0.1.0"  # runs and their keys carry it

if TYPE_CHECKING:
    from specbench.analysis.results import Results

__all__ = ["__version__", "load"]


def load(paths: Path | str | Iterable[Path | str]) -> Results:
    """Read finished runs as tidy pandas data frames.

    Example:
        ``specbench.load("results").samples`` has a row per sample of every run under ``results``.
        The other tables are ``runs``, ``rounds``, ``positions``, ``summary``, ``cells`` and
        ``verdicts``. ``.plot("pareto")`` returns a figure, and a notebook displays the cells.

    Args:
        paths: The folder of a run, a folder of runs, or several of these.

    Returns:
        The tables, each read on first access. Scores and rates lie in [0, 1], times are in seconds,
        and speeds in tokens per second; ``specbench list columns`` describes every column.

    Raises:
        UsageError: A path is not a folder. On access: no run has the table.
    """
    from specbench.analysis.results import Results

    return Results([paths] if isinstance(paths, (str, Path)) else paths)
