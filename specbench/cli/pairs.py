"""``specbench pairs``: export a pair to GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.generate import completer, grouped
from specbench.cli.options import output_option
from specbench.config import Options, option
from specbench.engine import pairs as registry
from specbench.files import check_writable

app = typer.Typer(no_args_is_help=True)


@app.callback()
def pairs() -> None:
    """Export a pair to GGUF files."""


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
