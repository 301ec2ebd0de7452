"""``specbench plot``: figures of finished runs, of how heads were trained and what they learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.generate import completer, grouped, one_of
from specbench.cli.learned import DEFAULT_TEXTS, plot_head
from specbench.cli.options import MethodRows, Models, Tasks
from specbench.cli.output import note
from specbench.errors import UsageError
from specbench.figures import AGAINST, COSTS, FIGURES, HEADS, STYLES, load_figure
from specbench.heads.registry import TRAINED
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.words import meant

if TYPE_CHECKING:
    from specbench.analysis.frames import Selection
    from specbench.results import Results

WITH_HEAD = "weights"  # the one figure that --head changes
WITH_COSTS = "pareto"  # and the one that --against does
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
            help="Folders of runs (for training, of heads), drawn together.",
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
            metavar="COST",
            help=f"For {WITH_COSTS}: what quality is drawn against; repeat or separate by commas: "
            f"{', '.join(COSTS)}.",
            show_default=",".join(AGAINST),
            autocompletion=completer(lambda: COSTS),
        ),
    ] = None,
    style: Annotated[
        str,
        one_of(
            "--style", STYLES, "paper: as wide as a column or a page; screen: larger and wider."
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
    costs, selection = _costs(figure, against), rows.of_tasks(data.task)
    if "speedup" in (costs or ()) and selection.methods is not None:
        methods = dict.fromkeys([*selection.methods, AUTOREGRESSIVE])  # the baseline
        selection = replace(selection, methods=list(methods))
    if head is not None:
        if figure != WITH_HEAD:
            raise UsageError(f"--head goes with {WITH_HEAD} only: leave it out or plot {WITH_HEAD}")
        if runs:
            raise UsageError("--head takes the place of runs: give only one of them")
        if typed := rows.retyped():
            raise UsageError(f"{typed[0]} selects from runs, which --head replaces: leave it out")
        texts = DEFAULT_TEXTS if limit is None else limit
        for path in plot_head(head, models, data, texts, style, output):
            print(path)
        return
    of_heads = FIGURES[figure].source == HEADS
    if of_heads and (typed := rows.retyped()):
        raise UsageError(f"{typed[0]} selects from runs, and {figure} draws heads: leave it out")
    others = data if of_heads else data.updated(task=None)
    if typed := [*models.retyped(), *others.retyped(), *([] if limit is None else ["--limit"])]:
        raise UsageError(f"{typed[0]} belongs to --head: name a head too, or leave it out")

    from specbench.figures.style import page, save

    folders = runs or [_newest_training() if of_heads else _newest_run()]
    folder = output or folders[-1] / "figures"
    if of_heads and folder.resolve() in {head.resolve() for head in folders}:
        raise UsageError(f"the figure would overwrite what {folder} holds: choose another --output")
    with page(style):
        if of_heads:
            drawing = draw(folders)
        else:
            drawing = draw(
                _finished(folders, selection), **({} if costs is None else {"against": costs})
            )
    # What is selected is named in the file, so that whole figures keep theirs.
    lengths = [f"N{length}" for length in selection.draft_lengths or ()]
    parts = [*(costs or ()), *(selection.tasks or ()), *(selection.methods or ()), *lengths]
    name = "-".join([figure, *parts])
    for path in save(drawing, folder, name):
        print(path)


def _costs(figure: str, typed: list[str] | None) -> list[str] | None:
    """The costs that the user chose, each once; None where nothing was typed."""
    if typed is None:
        return None
    if figure != WITH_COSTS:
        raise UsageError(f"--against goes with {WITH_COSTS} only: leave it out")
    costs = list(dict.fromkeys(name for names in typed for name in names.split(",")))
    for name in costs:
        if name not in COSTS:
            raise UsageError(f"--against knows no {name or 'blank'}: {meant(name, COSTS)}")
    return costs


def _newest_run() -> Path:
    from specbench.experiment.folders import newest_run

    return newest_run()


def _newest_training() -> Path:
    """Return the head under ``results/heads/`` that was trained last."""
    from specbench.training.folder import LOG

    logs = sorted(TRAINED.rglob(LOG), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise UsageError(f"there is no training under {TRAINED}: name a head's folder")
    return logs[-1].parent


def _finished(folders: list[Path], selection: Selection) -> Results:
    """Open runs, or a part of them, and note which are incomplete."""
    from specbench.experiment.folders import unfinished
    from specbench.results import Results

    for folder in folders:
        if state := unfinished(folder):
            note(f"{folder} is incomplete: {state}")
    return Results(folders, selection)
