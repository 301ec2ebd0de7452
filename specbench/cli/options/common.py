"""Options of several commands that belong to no group, and what options are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.choices import ALL
from specbench.experiment.variants import ANCHORS, WEIGHTS
from specbench.methods.registry import METHODS


def numbers(values: Iterable[float]) -> str:
    """Write numbers as a comma list."""
    return ",".join(f"{value:g}" for value in values)


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes the last name of a comma list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help=f"Methods to measure; repeat or separate by commas: {', '.join(METHODS)}, or all.",
        show_default=ALL,
        autocompletion=completer(lambda: [*METHODS, ALL]),
    ),
]

Anchors = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="Methods to measure beside the weights; repeat or separate by commas, or all.",
        show_default=",".join(ANCHORS),
        autocompletion=completer(lambda: [*METHODS, ALL]),
    ),
]

Weights = Annotated[
    str,
    typer.Option("--weights", metavar="W[,W...]", help="Weights on the target, from 0 to 1."),
]
DEFAULT_WEIGHTS = numbers(WEIGHTS)

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder to write, new or empty.",
        show_default="results/<time>-<command>-<pair>",
    ),
]

NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
