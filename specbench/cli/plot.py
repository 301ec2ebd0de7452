"""``specbench plot``: figures of finished runs, head training and learned weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.analysis import figures
from specbench.cli.finished import NEWEST, Rows, given_or_newest
from specbench.cli.generate import completer, grouped
from specbench.cli.options import DEFAULT_PAIR, Models, Tasks, output_option
from specbench.cli.output import note
from specbench.cli.tables import note_unfinished
from specbench.config import Options, option
from specbench.decoding.heads import registry
from specbench.engine.pairs import PairSpec, pairs
from specbench.errors import UsageError, require
from specbench.files import check_writable
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.plugins import short_name
from specbench.runs.labels import logged
from specbench.runs.records import RECORDS, SUMMARY, TABLE
from specbench.runs.run import require_folders, run_folders
from specbench.tasks.task import Task, task_names

if TYPE_CHECKING:
    from specbench.analysis.figures.style import Drawing

WITH_HEAD = "weights"  # the only figure that --head applies to
WITH_COSTS = "pareto"  # the only figure that --cost applies to
LEARNED = "weights-head"  # file name of WITH_HEAD drawn with --head
DEFAULT_TEXTS = 200


class PlotOptions(Options):
    """How to draw a figure, and where it goes."""

    head: str | None = option(
        None,
        f"For {WITH_HEAD}, in place of runs: a head, by its folder or file. Texts are sampled with "
        "it, and the figure shows which weights it gives to which tokens.",
        metavar="HEAD",
        panel="With --head",
    )
    limit: int | None = option(
        None,
        "Texts to sample.",
        ge=1,
        flags=("--limit", "-n"),
        shown=str(DEFAULT_TEXTS),
        panel="With --head",
        needs={"head": "{} needs --head: name a head too, or omit it"},
    )
    cost: list[str] | None = option(
        None,
        f"For {WITH_COSTS}: what quality is drawn against; several costs make several rows.",
        metavar="COST",
        shown=",".join(figures.AGAINST),
        choices=figures.COSTS,
    )
    style: str = option(
        figures.STYLES[0],
        "paper: letters and widths for a column or a page of print; screen: larger ones.",
        choices=figures.STYLES,
    )
    width: float | None = option(
        None, "Width of the figure in inches.", gt=0.5, le=40, shown="that of the style"
    )
    output: Path | None = output_option(
        "Folder for the figure (PNG, SVG, PDF) and the numbers it shows (CSV).",
        "figures/ in the last run folder; with --head, the folder of trained heads",
    )


@grouped
def plot(
    options: PlotOptions,
    models: Annotated[Models, ("pair", "target", "draft", "models", "device", "dtype")],
    data: Annotated[Tasks, ("task", "folder", "offline")],
    rows: Annotated[Rows, ("method", "draft_length", "drafter", "by")],
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
    source = figures.source_of(figure)
    _refuse_ignored(figure, source, options, models, data, rows, runs)
    require_folders(runs or ())
    rows = rows.updated(task=data.task)
    if runs and source != figures.HEADS:
        rows.require_in(runs)
    if options.output is not None:
        check_writable(options.output)
    draw = figures.load_figure(figure)
    if options.head is not None:
        name, (folder, draw) = LEARNED, _learned(options.head, options, models, data)
    elif source == figures.HEADS:
        heads = runs or logged(registry.TRAINED)[-1:]
        require(bool(heads), f"no trained head under {registry.TRAINED}: name a head's folder")
        name, draw = short_name(figure), partial(draw, heads)
        folder = options.output or heads[-1] / "figures"
        if folder.resolve() in {head.resolve() for head in heads}:
            raise UsageError(
                f"the figure would overwrite files in {folder}: choose another --output"
            )
    else:
        from specbench.analysis.results import Results

        folders, costs = given_or_newest(runs), options.cost or []
        part = rows.selection()
        if "speedup" in costs and part.methods is not None:  # the speedup needs its baseline
            part = replace(part, methods=list(dict.fromkeys([*part.methods, AUTOREGRESSIVE])))
        # The filters are part of the file name, so that a filtered figure replaces no full one.
        methods = map(short_name, part.methods or ())
        filters = [*part.by, *(part.tasks or ()), *methods]
        filters += [f"N{length}" for length in part.draft_lengths or ()]
        filters += part.drafters or ()
        name = re.sub("[:/]", "-", "-".join([short_name(figure), *costs, *filters]))
        folder = options.output or folders[-1] / "figures"
        note_unfinished(run_folders(folders, TABLE, SUMMARY, RECORDS))
        results = Results(folders, part, by_folder=True)
        draw = partial(draw, results, **({"against": costs} if costs else {}))

    from specbench.analysis.figures.style import page, save

    with page(options.style, options.width):
        drawing = draw()
    if figure == WITH_COSTS:
        fronts = drawing.data["mark"].eq("front").groupby(drawing.data["task"]).sum()
        bare = [str(task) for task, points in fronts.items() if points <= len(figures.COSTS)]
        swept = set(drawing.data.loc[drawing.data["method"] == "static", "task"])
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
    for path in save(drawing, folder, name):
        print(path)


def _refuse_ignored(
    figure: str,
    source: str,
    options: PlotOptions,
    models: Models,
    data: Tasks,
    rows: Rows,
    runs: Sequence[Path] | None,
) -> None:
    """Refuse options that the figure would ignore."""
    of_heads = source == figures.HEADS
    require(
        not options.cost or figure == WITH_COSTS, f"--cost applies only to {WITH_COSTS}: omit it"
    )
    for flag in rows.retyped()[:1] if of_heads or options.head is not None else ():
        why = f"but {figure} draws heads" if options.head is None else "which --head replaces"
        raise UsageError(f"{flag} filters runs, {why}: omit it")
    if options.head is not None:
        advice = f"omit it or plot {WITH_HEAD}"
        require(figure == WITH_HEAD, f"--head applies only to {WITH_HEAD}: {advice}")
        require(not runs, "--head replaces the runs: give only one of them")
        return
    further = data if of_heads else data.updated(task=None)
    for flag in [*models.retyped(), *further.retyped()][:1]:
        raise UsageError(f"{flag} needs --head: name a head too, or omit it")


def _learned(
    head: str, options: PlotOptions, models: Models, data: Tasks
) -> tuple[Path, Callable[[], Drawing]]:
    """Sample texts with a head; return the folder of its figure and the function that draws it.

    If the user names no pair or task, the head's own are used.

    Raises:
        UsageError: There is no such head, pair or task, or they do not go together.
    """
    described = registry.described(head)
    spec = _pair(head, described.get("pair"), models)
    models.require_here(spec)
    task = _task(head, described.get("task"), data)
    path = registry.find_head(spec, task.name, head).path
    folder = options.output or _folder(path, spec, task.name)
    limit = options.limit or DEFAULT_TEXTS
    task.examples("held-out", limit)  # fail before the models load

    from specbench.analysis.figures.heads import draw_learned
    from specbench.analysis.learned import About, tabulate
    from specbench.decoding.heads.head import load_head
    from specbench.engine.hub import quiet_libraries
    from specbench.engine.loading import load_pair
    from specbench.training.material import split_material
    from specbench.training.recipe import MAX_PROMPT_TOKENS
    from specbench.training.tokens import sample_tokens
    from specbench.training.verifier import HELD_OUT_SEED

    quiet_libraries(downloads=True)
    loaded = load_pair(spec, models.loading())
    weigher = load_head(path, loaded)
    material = split_material(loaded, task, "held-out", limit, 0, MAX_PROMPT_TOKENS)
    if material.left_out:
        note(f"{material.left_out} prompts are skipped: longer than {MAX_PROMPT_TOKENS} tokens")
    tokens = sample_tokens(loaded, weigher, material.prompts, task.max_new_tokens, HELD_OUT_SEED)
    trained_on = registry.described(str(path)).get("task", "")
    table = tabulate(tokens, About(spec.name, task.name, trained_on, weigher.kind))
    return folder, partial(draw_learned, table)


def _pair(head: str, recorded: str | None, typed: Models) -> PairSpec:
    """Return the pair the user named, else the head's pair, else the default pair."""
    if typed.names_models:
        return typed.spec()
    name = recorded or DEFAULT_PAIR
    if name not in pairs():
        raise UsageError(
            f"{head} was trained for {name}, which is not a known pair: give its models with "
            "--target and --draft"
        )
    return typed.updated(pair=name).spec()


def _task(head: str, recorded: str | None, typed: Tasks) -> Task:
    """Return the task the user named, else the head's task."""
    names = typed.task or ([] if recorded is None else [recorded])
    require(bool(names), f"{head} does not say which task it is for: name one with --task")
    if not typed.task and recorded not in task_names():
        raise UsageError(
            f"{head} was trained on your own task {recorded}: give its file with --task"
        )
    tasks = typed.updated(task=names).tasks()
    require(len(tasks) <= 1, "--task takes only one task here: the figure shows one")
    return tasks[0]


def _folder(head: Path, spec: PairSpec, task: str) -> Path:
    """Return the default output folder: the head's own folder if it is below ``results/``."""
    folder_of_head = head.parent if head.suffix == registry.RELEASED else head
    if folder_of_head.resolve().is_relative_to(registry.TRAINED.parent.resolve()):
        return folder_of_head
    folder = registry.trained_heads(spec.name) / task
    if registry.is_head(folder):
        raise UsageError(f"{folder} contains another head: name a folder with --output")
    return folder
