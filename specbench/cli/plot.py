"""``specbench plot``: figures of finished runs and of trainings of heads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.analysis import figures
from specbench.cli.finished import NEWEST, Rows, given_or_newest
from specbench.cli.generate import completer, grouped
from specbench.cli.options import output_option
from specbench.cli.output import note
from specbench.cli.tables import note_unfinished
from specbench.config import Options, option
from specbench.decoding.heads import registry
from specbench.errors import UsageError, require
from specbench.files import check_writable
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.plugins import short_name
from specbench.runs.labels import logged
from specbench.runs.records import RECORDS, SUMMARY, TABLE
from specbench.runs.run import require_folders, run_folders

if TYPE_CHECKING:
    import pandas as pd

    from specbench.runs.frames import Selection

WITH_COSTS = "pareto"  # the only figure that --cost applies to


class PlotOptions(Options):
    """How to draw a figure, and where it goes."""

    cost: list[str] | None = option(
        None,
        f"For {WITH_COSTS}: what quality is drawn against; several costs make several rows.",
        metavar="COST",
        shown=",".join(figures.AGAINST),
        choices=figures.COSTS,
    )
    style: str = option(
        figures.STYLES[0],
        "paper: letters and widths for a column or a page of print; screen: larger ones; or a "
        "FILE.mplstyle of matplotlib's, with fonts and colours of your own.",
        metavar="NAME|FILE",
        complete=lambda: figures.STYLES,
    )
    width: float | None = option(
        None, "Width of the figure in inches.", gt=0.5, le=40, shown="that of the style"
    )
    output: Path | None = output_option(
        "Folder for the figure (PNG, SVG, PDF) and the numbers it shows (CSV).",
        "figures/ in the last run folder",
    )


@grouped
def plot(
    options: PlotOptions,
    rows: Rows,
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help=f"One of {', '.join(figures.FIGURES)} (`specbench list figures` tells what each "
            "shows), or FILE.py:FUNCTION, one of your own.",
            autocompletion=completer(lambda: figures.FIGURES),
        ),
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Run folders, drawn together (for the training figure: folders of heads).",
            show_default=NEWEST,
        ),
    ] = None,
) -> None:
    """Draw a figure of finished runs or heads as PNG, SVG and PDF, with its data as CSV."""
    of_heads = figures.source_of(figure) == figures.HEADS
    costs = options.cost or []
    require(not costs or figure == WITH_COSTS, f"--cost applies only to {WITH_COSTS}: omit it")
    if of_heads and (flags := rows.retyped()):
        raise UsageError(f"{flags[0]} filters runs, but {figure} draws heads: omit it")
    require_folders(runs or ())
    if runs and not of_heads:
        rows.require_in(runs)
    if options.output is not None:
        check_writable(options.output)
    draw = figures.load_figure(figure)
    if of_heads:
        drawn = runs or logged(registry.TRAINED)[-1:]
        require(bool(drawn), f"no trained head under {registry.TRAINED}: name a head's folder")
        name = short_name(figure)
        draw = partial(draw, drawn)
    else:
        drawn, part = given_or_newest(runs), rows.selection()
        if "speedup" in costs and part.methods is not None:  # and its baseline
            methods = list(dict.fromkeys([*part.methods, AUTOREGRESSIVE]))
            part = replace(part, methods=methods)
        name = _file_name(figure, costs, part)
        note_unfinished(run_folders(drawn, TABLE, SUMMARY, RECORDS))

        from specbench.analysis.results import Results

        results = Results(drawn, part, by_folder=True)
        draw = partial(draw, results, **({"against": costs} if costs else {}))
    folder = options.output or drawn[-1] / "figures"
    if of_heads and folder.resolve() in {head.resolve() for head in drawn}:
        raise UsageError(f"the figure would overwrite files in {folder}: choose another --output")

    from specbench.analysis.figures.style import page, save

    with page(options.style, options.width):
        drawing = draw()
    if figure == WITH_COSTS:
        _note_fronts(drawing.data)
        if results.untimed and ("time" in costs or not costs):
            note(f"{results.untimed}: draw --cost acceptance")
    for path in save(drawing, folder, name):
        print(path)


def _file_name(figure: str, costs: Sequence[str], part: Selection) -> str:
    """Return a name with the filters, so that a filtered figure replaces no full one."""
    filters = [*part.by, *(part.tasks or ()), *map(short_name, part.methods or ())]
    filters += [f"N{length}" for length in part.draft_lengths or ()]
    filters += part.drafters or ()
    return re.sub("[:/]", "-", "-".join([short_name(figure), *costs, *filters]))


def _note_fronts(data: pd.DataFrame) -> None:
    """Say on which tasks a static front is one point or absent."""
    fronts = data["mark"].eq("front").groupby(data["task"]).sum()
    bare = [str(task) for task, points in fronts.items() if points <= len(figures.COSTS)]
    swept = set(data.loc[data["method"] == "static", "task"])
    if points := [task for task in bare if task in swept]:
        note(
            f"the static front is one point on {', '.join(points)}: one setting has the "
            "highest quality and the largest gain, so nothing is traded"
        )
    if without := [task for task in bare if task not in swept]:
        note(
            f"no static front on {', '.join(without)}: repeat the run with static among its "
            "methods and --set weight=0.75,0.5,0"
        )
