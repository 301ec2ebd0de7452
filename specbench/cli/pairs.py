"""``specbench pairs``: retrain a bundled pair from its recipe, or export a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.generate import completer, grouped
from specbench.cli.options import output_option
from specbench.config import Options, option
from specbench.errors import UsageError
from specbench.files import check_writable
from specbench.pairs import registry
from specbench.pairs.registry import PAIRS_FILE, PARTS

RECIPE = "recipe.toml"

app = typer.Typer(no_args_is_help=True)


def buildable() -> list[str]:
    """Return the names of the pairs that have a recipe."""
    return sorted(path.parent.name for path in PAIRS_FILE.parent.glob(f"*/{RECIPE}"))


@app.callback()
def pairs() -> None:
    """Retrain a bundled pair from its recipe, or export a pair to GGUF files."""


class BuildOptions(Options):
    """Which parts to build, and where they go."""

    parts: list[str] | None = option(
        None,
        "Build only this part; the folder must contain the other parts.",
        metavar="NAME",
        shown="all",
        flags=("--part",),
        choices=PARTS,
    )
    output: Path | None = output_option("Folder to write.", "results/pairs/NAME")


@app.command(epilog="Example: [bold]specbench pairs build mini --part heads[/bold]")
@grouped
def build(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"The pair to build: {', '.join(buildable())}.",
            autocompletion=completer(buildable),
        ),
    ],
    asked: BuildOptions,
) -> None:
    """Train a pair's models and heads; mini takes about an hour on two CPU cores, python two."""
    if name not in buildable():
        raise UsageError(f"there is no recipe for {name!r}: choose one of {', '.join(buildable())}")

    folder = asked.output or Path("results/pairs") / name
    check_writable(folder)

    from specbench.pretraining.build import build as build_pair

    build_pair(PAIRS_FILE.parent / name / RECIPE, folder, asked.parts or PARTS)
    print(folder)


class ExportOptions(Options):
    """What to write, and where."""

    weight_type: Literal["f32", "f16", "q8_0"] = option(
        "f32",
        "Type of the weight matrices: 32 or 16 bits, or 8 bits with a scale per 32 weights.",
        metavar="TYPE",
        flags=("--type",),
        choices=registry.GGUF_TYPES,
    )
    output: Path | None = output_option("Folder to write.", "results/gguf/NAME")


@app.command(epilog="Example: [bold]specbench pairs export mini --type q8_0[/bold]")
@grouped
def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The pair to export.", autocompletion=completer(registry.pairs)
        ),
    ],
    asked: ExportOptions,
) -> None:
    """Write a pair of Llama models as GGUF files, for --engine llamacpp."""
    spec = registry.get_pair(name)
    folder = asked.output or Path("results/gguf") / spec.name
    check_writable(folder)

    from specbench.engine.export import export_pair

    files = export_pair(spec, folder, asked.weight_type)
    for file in files:
        print(file)
