"""``specbench plot``: figures from the tables of finished runs, and of what a head has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.learned import DEFAULT_TEXTS, plot_head
from specbench.cli.options.common import completer
from specbench.cli.options.data import Tasks
from specbench.cli.options.groups import changed, grouped
from specbench.cli.options.models import Models
from specbench.cli.output import note
from specbench.errors import UsageError
from specbench.figures import FIGURES, load_figure

WITH_HEAD = "weights"  # the one figure that --head changes
_PANEL = "With --head"


@grouped
def plot(
    models: Models,
    data: Tasks,
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
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="HEAD",
            help=f"For {WITH_HEAD}, instead of runs: a head's folder or file. Samples texts with "
            "it and draws its weights by kind of token and by token.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            help="Texts to sample.",
            show_default=str(DEFAULT_TEXTS),
            rich_help_panel=_PANEL,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the PNG and the SVG, and with --head the CSV.",
            show_default="figures/ in the last run's folder; the head's folder",
        ),
    ] = None,
) -> None:
    """Draw a figure from the tables of finished runs, or of a head, as PNG and SVG."""
    draw = load_figure(figure)
    if head is not None:
        if figure != WITH_HEAD:
            raise UsageError(f"--head goes with {WITH_HEAD} only: leave it out or plot {WITH_HEAD}")
        if runs:
            raise UsageError("--head takes the place of runs: give one of the two")
        texts = DEFAULT_TEXTS if limit is None else limit
        for path in plot_head(head, models, data, texts, output):
            print(path)
        return
    if typed := [*changed(models, data), *([] if limit is None else ["--limit"])]:
        raise UsageError(f"{typed[0]} belongs to --head: name a head too, or leave it out")

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
