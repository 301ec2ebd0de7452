"""What ``specbench plot weights --head`` does: sample texts with a head, tabulate, draw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from specbench.cli.options import DEFAULT_PAIR, Models, Tasks
from specbench.cli.output import note
from specbench.errors import UsageError
from specbench.heads.registry import (
    BUNDLED,
    RELEASED,
    RESULTS,
    TRAINED,
    find_head,
    is_head,
    trained_heads,
)
from specbench.pairs.registry import PairSpec, pairs
from specbench.tasks.task import Task

FIGURE = "weights-head"
DEFAULT_TEXTS = 200


def plot_head(
    head: str, models: Models, data: Tasks, limit: int, style: str, output: Path | None
) -> list[Path]:
    """Write the figure of what a head has learned and the table behind it; return their paths.

    Where the user names no pair or task, the head's own are used.

    Raises:
        UsageError: There is no such head, pair or task, or they do not go together.
        SpecbenchError: A file cannot be written.
    """
    described = _description(head)
    spec = _pair(head, described.get("pair"), models)
    chosen = _task(head, described.get("task"), data)
    path = find_head(spec, chosen.name, head).path
    folder = output or _folder(path, spec, chosen.name)

    chosen.examples("held-out", limit)  # what cannot be had is told before models load

    from specbench.analysis.learned import About, tabulate
    from specbench.engine.loading import load_pair
    from specbench.experiment.progress import quiet_libraries
    from specbench.figures.heads import draw_learned as draw
    from specbench.figures.style import page, save
    from specbench.heads.files import load_head
    from specbench.training.material import split_material
    from specbench.training.recipe import MAX_PROMPT_TOKENS
    from specbench.training.tokens import sample_tokens
    from specbench.training.verifier import HELD_OUT_SEED

    quiet_libraries(downloads=sys.stderr.isatty())
    loaded = load_pair(spec, models.loading())
    weigher = load_head(path, loaded)
    material = split_material(loaded, chosen, "held-out", limit, 0, MAX_PROMPT_TOKENS)
    if material.left_out:
        note(f"{material.left_out} prompts are left out: more than {MAX_PROMPT_TOKENS} tokens")
    tokens = sample_tokens(loaded, weigher, material.prompts, chosen.max_new_tokens, HELD_OUT_SEED)
    trained_on = _description(str(path)).get("task", "")
    table = tabulate(tokens, About(spec.name, chosen.name, trained_on, weigher.kind))
    with page(style):
        drawing = draw(table)
    return save(drawing, folder, FIGURE)


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
