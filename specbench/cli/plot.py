"""``specbench plot``: figures of finished runs, of how heads were trained and what they learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.generate import completer, grouped
from specbench.cli.options import DEFAULT_PAIR, NEWEST, Models, Rows, Tasks, output_option
from specbench.cli.output import note
from specbench.cli.tables import note_unfinished
from specbench.config import Options, option
from specbench.errors import UsageError
from specbench.figures import AGAINST, COSTS, FIGURES, HEADS, STYLES, load_figure
from specbench.heads.registry import (
    BUNDLED,
    RELEASED,
    RESULTS,
    TRAINED,
    find_head,
    is_head,
    trained_heads,
)
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.pairs.registry import PairSpec, pairs
from specbench.tasks.task import Task

if TYPE_CHECKING:
    from specbench.figures.style import Drawing

WITH_HEAD = "weights"  # the one figure that --head changes
WITH_COSTS = "pareto"  # and the one that --against does
LEARNED = "weights-head"  # and this is then its name
DEFAULT_TEXTS = 200


class PlotOptions(Options):
    """How a figure is drawn, and where it goes."""

    head: str | None = option(
        None,
        f"For {WITH_HEAD}, instead of runs: a head's folder or file. Samples texts with it and "
        "draws its weights by kind of token and by token.",
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
    )
    against: list[str] | None = option(
        None,
        f"For {WITH_COSTS}: what quality is drawn against; repeat or separate by commas.",
        metavar="COST",
        shown=",".join(AGAINST),
        choices=COSTS,
    )
    style: str = option(
        STYLES[0], "paper: as wide as a column or a page; screen: larger and wider.", choices=STYLES
    )
    output: Path | None = output_option(
        "Folder for the figure as PNG, SVG and PDF, and for its data as CSV.",
        "figures/ in the last folder; with --head the head's folder",
    )


@grouped
def plot(
    asked: PlotOptions,
    models: Models,
    data: Tasks,
    rows: Annotated[Rows, ("method", "draft_length")],
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
            show_default=NEWEST,
        ),
    ] = None,
) -> None:
    """Draw a figure of finished runs or of heads, as PNG, SVG and PDF, with its data as CSV."""
    draw = load_figure(figure)
    _refuse_ignored(figure, asked, models, data, rows, runs)
    if asked.head is not None:
        name, (folder, draw) = LEARNED, _learned(asked.head, asked, models, data)
    elif FIGURES[figure].source == HEADS:
        heads = runs or [_newest_training()]
        name, folder, draw = figure, asked.output or heads[-1] / "figures", partial(draw, heads)
        if folder.resolve() in {head.resolve() for head in heads}:
            raise UsageError(
                f"the figure would overwrite what {folder} holds: choose another --output"
            )
    else:
        from specbench.experiment.folders import newest_run
        from specbench.results import Results

        folders, costs = runs or [newest_run()], asked.against or []
        part = rows.updated(task=data.task).selection()
        if "speedup" in costs and part.methods is not None:  # its baseline is needed, too
            part = replace(part, methods=list(dict.fromkeys([*part.methods, AUTOREGRESSIVE])))
        # What is selected is named in the file, so that whole figures keep theirs.
        lengths = [f"N{length}" for length in part.draft_lengths or ()]
        name = "-".join([figure, *costs, *(part.tasks or ()), *(part.methods or ()), *lengths])
        folder = asked.output or folders[-1] / "figures"
        note_unfinished(folders)
        draw = partial(draw, Results(folders, part), **({"against": costs} if costs else {}))

    from specbench.figures.style import page, save

    with page(asked.style):
        drawing = draw()
    for path in save(drawing, folder, name):
        print(path)


def _refuse_ignored(
    figure: str,
    asked: PlotOptions,
    models: Models,
    data: Tasks,
    rows: Rows,
    runs: Sequence[Path] | None,
) -> None:
    """Refuse options that a figure would not heed."""
    of_heads = FIGURES[figure].source == HEADS
    if asked.against and figure != WITH_COSTS:
        raise UsageError(f"--against goes with {WITH_COSTS} only: leave it out")
    if asked.head is not None:
        if figure != WITH_HEAD:
            raise UsageError(f"--head goes with {WITH_HEAD} only: leave it out or plot {WITH_HEAD}")
        if runs:
            raise UsageError("--head takes the place of runs: give only one of them")
        if typed := rows.retyped():
            raise UsageError(f"{typed[0]} selects from runs, which --head replaces: leave it out")
        return
    if of_heads and (typed := rows.retyped()):
        raise UsageError(f"{typed[0]} selects from runs, and {figure} draws heads: leave it out")
    others = data if of_heads else data.updated(task=None)
    limit = [] if asked.limit is None else ["--limit"]
    if typed := [*models.retyped(), *others.retyped(), *limit]:
        raise UsageError(f"{typed[0]} belongs to --head: name a head too, or leave it out")


def _newest_training() -> Path:
    """Return the head under ``results/heads/`` that was trained last."""
    from specbench.training.folder import LOG

    logs = sorted(TRAINED.rglob(LOG), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise UsageError(f"there is no training under {TRAINED}: name a head's folder")
    return logs[-1].parent


def _learned(
    head: str, asked: PlotOptions, models: Models, data: Tasks
) -> tuple[Path, Callable[[], Drawing]]:
    """Sample texts with a head; return where its figure goes, and what draws it.

    Where the user names no pair or task, the head's own are used.

    Raises:
        UsageError: There is no such head, pair or task, or they do not go together.
    """
    described = _description(head)
    spec = _pair(head, described.get("pair"), models)
    task = _task(head, described.get("task"), data)
    path = find_head(spec, task.name, head).path
    folder = asked.output or _folder(path, spec, task.name)
    limit = asked.limit or DEFAULT_TEXTS
    task.examples("held-out", limit)  # what cannot be had is told before models load

    from specbench.analysis.learned import About, tabulate
    from specbench.engine.loading import load_pair
    from specbench.experiment.progress import quiet_libraries
    from specbench.figures.heads import draw_learned
    from specbench.heads.files import load_head
    from specbench.training.material import split_material
    from specbench.training.recipe import MAX_PROMPT_TOKENS
    from specbench.training.tokens import sample_tokens
    from specbench.training.verifier import HELD_OUT_SEED

    quiet_libraries(downloads=True)
    loaded = load_pair(spec, models.loading())
    weigher = load_head(path, loaded)
    material = split_material(loaded, task, "held-out", limit, 0, MAX_PROMPT_TOKENS)
    if material.left_out:
        note(f"{material.left_out} prompts are left out: more than {MAX_PROMPT_TOKENS} tokens")
    tokens = sample_tokens(loaded, weigher, material.prompts, task.max_new_tokens, HELD_OUT_SEED)
    trained_on = _description(str(path)).get("task", "")
    table = tabulate(tokens, About(spec.name, task.name, trained_on, weigher.kind))
    return folder, partial(draw_learned, table)


def _description(head: str) -> dict[str, Any]:
    """What a head says of itself; nothing where it is a word, the authors' file, or several."""
    path = Path(head)
    if head in (BUNDLED, RESULTS):
        return {}
    if not path.exists():
        raise UsageError(f"there is no head at {head}: --head names a head's folder or file")
    folder = path.parent if path.is_file() else path
    if path.suffix == RELEASED or not is_head(folder):
        return {}

    from specbench.heads.files import read_description

    return read_description(folder)


def _pair(head: str, own: str | None, typed: Models) -> PairSpec:
    """The pair the user names, else the head's own, else the default one."""
    if typed.pair is not None or typed.target is not None:
        return typed.spec()
    name = own or DEFAULT_PAIR
    if name not in pairs():
        raise UsageError(
            f"{head} is for {name}, which is no pair by name: give its models with --target "
            "and --draft"
        )
    return typed.updated(pair=name).spec()


def _task(head: str, own: str | None, typed: Tasks) -> Task:
    """The task the user names, else the head's own."""
    names = typed.task or ([] if own is None else [own])
    if not names:
        raise UsageError(f"{head} does not say which task it is for: name one with --task")
    found = typed.updated(task=names).tasks()
    if len(found) > 1:
        raise UsageError("--task takes one task here: a figure is of one")
    return found[0]


def _folder(head: Path, spec: PairSpec, task: str) -> Path:
    """Where to write unless the user says: beside the head, but only below ``results/``."""
    own = head.parent if head.suffix == RELEASED else head
    if own.resolve().is_relative_to(TRAINED.parent.resolve()):
        return own
    folder = trained_heads(spec.name) / task
    if is_head(folder):
        raise UsageError(f"{folder} holds another head: name a folder with --output")
    return folder
