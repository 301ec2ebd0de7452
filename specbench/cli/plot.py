"""``specbench plot``: figures from the tables of finished runs; no model is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import completer
from specbench.cli.output import note
from specbench.figures import FIGURES, load_figure


def plot(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help=f"One of {', '.join(FIGURES)}.",
            autocompletion=completer(lambda: FIGURES),
        ),
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders of runs, drawn together.",
            show_default="the newest under results/",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the PNG and the SVG.",
            show_default="figures/ in the last run's folder",
        ),
    ] = None,
) -> None:
    """Draw a figure from the tables of finished runs, as PNG and SVG."""
    draw = load_figure(figure)

    from specbench.analysis.frames import read_summary
    from specbench.experiment.store import newest_run, unfinished
    from specbench.figures.style import save

    folders = runs or [newest_run()]
    for folder in folders:
        if state := unfinished(folder):
            note(f"{folder} is not a whole run: {state}")
    drawn = draw(read_summary(*folders))
    for path in save(drawn, output or folders[-1] / "figures", figure):
        print(path)
