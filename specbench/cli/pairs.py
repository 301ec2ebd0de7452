"""``specbench pairs``: retrain a bundled pair from its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.generate import completer
from specbench.errors import UsageError
from specbench.pairs.registry import PAIRS_FILE, PARTS

RECIPE = "recipe.toml"

app = typer.Typer(no_args_is_help=True)


def buildable() -> list[str]:
    """Return the names of the pairs that come with a recipe."""
    return sorted(path.parent.name for path in PAIRS_FILE.parent.glob(f"*/{RECIPE}"))


@app.callback()
def pairs() -> None:
    """Retrain a bundled pair from its recipe."""


@app.command(epilog="Example: [bold]specbench pairs build mini --part heads[/bold]")
def build(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"The pair to build: {', '.join(buildable())}.",
            autocompletion=completer(buildable),
        ),
    ],
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME",
            help=f"Only this part ({', '.join(PARTS)}); the folder must hold the others already.",
            show_default="all",
            autocompletion=completer(lambda: PARTS),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write.", show_default="results/pairs/NAME"),
    ] = None,
) -> None:
    """Train the models of a pair and their heads; about an hour for mini on two CPU cores."""
    if name not in buildable():
        raise UsageError(f"there is no recipe for {name!r}: choose one of {', '.join(buildable())}")
    if unknown := set(part or ()) - set(PARTS):
        raise UsageError(f"there is no part {min(unknown)!r}: choose from {', '.join(PARTS)}")

    from specbench.training.pretrain import build as build_pair

    folder = output or Path("results/pairs") / name
    build_pair(PAIRS_FILE.parent / name / RECIPE, folder, part or PARTS)
    print(folder)
