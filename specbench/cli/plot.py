"""``specbench plot``: figures of finished runs, of how heads were trained and what they learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.learned import DEFAULT_TEXTS, plot_head
from specbench.cli.options.common import completer
from specbench.cli.options.data import Tasks
from specbench.cli.options.groups import changed, grouped
from specbench.cli.options.models import Models
from specbench.cli.options.rows import MethodRows
from specbench.cli.output import note
from specbench.errors import UsageError
from specbench.figures import AGAINST, FIGURES, HEADS, PRICES, STYLES, load_figure
from specbench.heads.registry import TRAINED
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.words import meant

if TYPE_CHECKING:
    from specbench.analysis.selection import Selection
    from specbench.results import Results

WITH_HEAD = "weights"  # the one figure that --head changes
WITH_PRICES = "pareto"  # and the one that --against does
_PANEL = "With --head"


@grouped
def plot(
    models: Models,
    data: Tasks,
    rows: MethodRows,
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
            help="Folders of runs, or for training of heads, drawn together.",
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
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="PRICE",
            help=f"For {WITH_PRICES}: what quality is drawn against; repeat or separate by commas: "
            f"{', '.join(PRICES)}.",
            show_default=",".join(AGAINST),
            autocompletion=completer(lambda: PRICES),
        ),
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            "--style",
            metavar="STYLE",
            help="paper: as wide as a column or a page of one; screen: larger and wider.",
            autocompletion=completer(lambda: STYLES),
        ),
    ] = STYLES[0],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the figure as PNG, SVG and PDF, and for its data as CSV.",
            show_default="figures/ in the last folder; with --head the head's folder",
        ),
    ] = None,
) -> None:
    """Draw a figure of finished runs or of heads, as PNG, SVG and PDF, with its data as CSV."""
    draw = load_figure(figure)
    if style not in STYLES:
        raise UsageError(f"there is no style {style}: {meant(style, STYLES)}")
    prices, selection = _prices(figure, against), rows.of_tasks(data.task)
    if "speedup" in (prices or ()) and selection.methods is not None:
        methods = dict.fromkeys([*selection.methods, AUTOREGRESSIVE])  # which it is over
        selection = replace(selection, methods=list(methods))
    if head is not None:
        if figure != WITH_HEAD:
            raise UsageError(f"--head goes with {WITH_HEAD} only: leave it out or plot {WITH_HEAD}")
        if runs:
            raise UsageError("--head takes the place of runs: give one of the two")
        if typed := changed(rows):
            raise UsageError(f"{typed[0]} chooses of runs, whose place --head takes: leave it out")
        texts = DEFAULT_TEXTS if limit is None else limit
        for path in plot_head(head, models, data, texts, style, output):
            print(path)
        return
    of_heads = FIGURES[figure].source == HEADS
    if of_heads and (typed := changed(rows)):
        raise UsageError(f"{typed[0]} chooses of runs, and {figure} is of heads: leave it out")
    others = data if of_heads else replace(data, task=None)
    if typed := [*changed(models, others), *([] if limit is None else ["--limit"])]:
        raise UsageError(f"{typed[0]} belongs to --head: name a head too, or leave it out")

    from specbench.figures.saving import save
    from specbench.figures.style import page

    folders = runs or [_newest_training() if of_heads else _newest_run()]
    folder = output or folders[-1] / "figures"
    if of_heads and folder.resolve() in {head.resolve() for head in folders}:
        raise UsageError(f"the figure would overwrite what {folder} holds: choose another --output")
    with page(style):
        if of_heads:
            drawing = draw(folders)
        else:
            drawing = draw(
                _finished(folders, selection), **({} if prices is None else {"against": prices})
            )
    # Whole figures keep their files.
    lengths = [f"N{length}" for length in selection.draft_lengths or ()]
    parts = [*(prices or ()), *(selection.tasks or ()), *(selection.methods or ()), *lengths]
    name = "-".join([figure, *parts])
    for path in save(drawing, folder, name):
        print(path)


def _prices(figure: str, typed: list[str] | None) -> list[str] | None:
    """What the user wants quality drawn against, each once; None where nothing was said."""
    if typed is None:
        return None
    if figure != WITH_PRICES:
        raise UsageError(f"--against goes with {WITH_PRICES} only: leave it out")
    prices = list(dict.fromkeys(name for names in typed for name in names.split(",")))
    for name in prices:
        if name not in PRICES:
            raise UsageError(f"--against knows no {name or 'blank'}: {meant(name, PRICES)}")
    return prices


def _newest_run() -> Path:
    from specbench.experiment.folders import newest_run

    return newest_run()


def _newest_training() -> Path:
    """Return the head under ``results/heads/`` whose training went on last."""
    from specbench.training.folder import LOG

    logs = sorted(TRAINED.rglob(LOG), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise UsageError(f"there is no training under {TRAINED}: name a head's folder")
    return logs[-1].parent


def _finished(folders: list[Path], selection: Selection) -> Results:
    """Open runs, or a part of them, and say which of them are not whole."""
    from specbench.experiment.folders import unfinished
    from specbench.results import Results

    for folder in folders:
        if state := unfinished(folder):
            note(f"{folder} is not a whole run: {state}")
    return Results(folders, selection)
