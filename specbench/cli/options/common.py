"""Options of several commands that belong to no group, and what options are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.choices import METHOD_GROUPS, PAPER
from specbench.experiment.variants import ANCHORS
from specbench.methods.registry import METHODS, get_method


def numbers(values: Iterable[float]) -> str:
    """Write numbers as a comma list."""
    return ",".join(f"{value:g}" for value in values)


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes the last name of a comma list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


def _methods() -> list[str]:
    return [*METHODS, *METHOD_GROUPS]


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help=f"Methods to measure; repeat or separate by commas: {', '.join(METHODS)}; paper for "
        "the first six, or all.",
        show_default=PAPER,
        autocompletion=completer(_methods),
    ),
]

Anchors = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="Methods to measure beside the weights; repeat or separate by commas, or paper, all.",
        show_default=",".join(ANCHORS),
        autocompletion=completer(_methods),
    ),
]

Swept = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="Methods to measure; those that take the parameter are swept, and all that do where "
        "none is named. Repeat or separate by commas, or paper, all.",
        show_default=",".join(ANCHORS),
        autocompletion=completer(_methods),
    ),
]

Weights = Annotated[
    str,
    typer.Option("--weights", metavar="W[,W...]", help="Weights on the target, from 0 to 1."),
]
DEFAULT_WEIGHTS = numbers(get_method("static").parameters[0].grid)

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder to write, new or empty.",
        show_default="results/<time>-<command>-<pair>",
    ),
]

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Folders of runs, or of many runs.",
        show_default="the newest under results/",
    ),
]

NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
