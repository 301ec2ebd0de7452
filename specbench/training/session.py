"""A training and its folder: log, checkpoint, and in the end the head.

While it lasts the folder holds ``training.csv`` (a row per step) and ``checkpoint.pt``; the head's
two files take the checkpoint's place when it is done. A row is written before its checkpoint, so
that a training killed between the two writes it again.
"""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specbench.engine.loading import LoadedPair
from specbench.files import clear_errors, write_atomically
from specbench.heads.files import fingerprints, save_head
from specbench.tasks.task import Task
from specbench.training.dial import settle
from specbench.training.folder import CHECKPOINT, LOG
from specbench.training.material import Materials, read_materials
from specbench.training.parts import RollOut, here
from specbench.training.recipe import HeadRecipe
from specbench.training.state import State, load_state, new_state, save_state
from specbench.training.verifier import Progress, held_out_scores, train_head
from specbench.version import __version__

NO_SPREAD = 1e-6  # of rewards: equal but for rounding


def train_into(
    pair: LoadedPair,
    task: Task,
    recipe: HeadRecipe,
    folder: Path,
    report: Callable[[Progress], None],
    resume: bool = False,
) -> dict[str, Any]:
    """Train a head: ``prepare`` and ``carry_out`` in one."""
    return carry_out(prepare(pair, task, recipe, folder, resume), report)


class Training(NamedTuple):
    """A training that may begin, or go on.

    Attributes:
        pair: Loaded models.
        task: What to train for.
        recipe: How.
        folder: Where to.
        materials: What it reads.
        state: Where it stands.
    """

    pair: LoadedPair
    task: Task
    recipe: HeadRecipe
    folder: Path
    materials: Materials
    state: State


def prepare(
    pair: LoadedPair, task: Task, recipe: HeadRecipe, folder: Path, resume: bool = False
) -> Training:
    """Read all prompts, and refuse what cannot be trained; nothing is written.

    Args:
        pair: Loaded models.
        task: What to train for.
        recipe: How.
        folder: Where to; need not be there.
        resume: Go on from the folder's checkpoint, if it has one.

    Raises:
        UsageError: The checkpoint cannot be read or is of another training, the task has no
            training split, or most of its prompts are too long.
    """
    # First, as a data set says what it is once it has been read.
    materials = read_materials(pair, task, recipe)
    going_on = resume and (folder / CHECKPOINT).exists()
    state = load_state(pair, task, recipe, folder) if going_on else new_state(pair, recipe)
    return Training(pair, task, recipe, folder, materials, state)


def carry_out(
    training: Training, report: Callable[[Progress], None], roll_out: RollOut | None = None
) -> dict[str, Any]:
    """Train a head, write it to its folder, and return what ``head.json`` says of it.

    Args:
        training: What ``prepare`` returns.
        report: Called after every step, once its checkpoint is on disk; a training that goes on
            reports its earlier steps first.
        roll_out: Decodes with the pair; None is this process.

    Raises:
        RunError: The folder cannot be written, the loss is no number, or the workers that decode
            keep dying; the last checkpoint stays.
    """
    pair, task, recipe, folder, materials, state = training
    roll_out = roll_out or here(pair)
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for row in state.history:
        report(Progress(**row))  # type: ignore[arg-type]  # a count is still an int in the history

    def record(progress: Progress, state: State) -> None:
        state.history.append(progress._asdict())
        write_atomically(folder / LOG, _csv(state.history))
        save_state(state, pair, task, recipe, folder)
        report(progress)

    head = train_head(pair, roll_out, task, recipe, materials.train, state, record)
    wish, parts = recipe.target_acceptance, recipe.rollout_parts
    if wish is not None and materials.settling is not None:
        settle(roll_out, task, head, wish, materials.settling, parts)
    scores = held_out_scores(roll_out, task, head, materials.held_out, parts)
    description = _describe(training, scores)
    save_head(head, folder, description)
    with clear_errors(folder):
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return description


def _describe(training: Training, scores: dict[str, Any]) -> dict[str, Any]:
    pair, task, recipe, _, materials, state = training
    history = state.history
    seconds = sum(row["rollout_seconds"] + row["update_seconds"] for row in history)
    return {
        "pair": pair.name,
        "task": task.name,
        "task_version": task.version,
        "prompt_format": task.prompt_format,
        "data": task.provenance(),
        "left_out": materials.left_out(),
        "kind": recipe.head_kind,
        "models": fingerprints(pair),
        "hidden_sizes": {"target": pair.target.hidden_size, "draft": pair.draft.hidden_size},
        "recipe": asdict(recipe),
        "scores": scores,
        "strict_acceptance": 1 - history[0]["disagreement"],
        "steps_without_gradient": sum(row["reward_spread"] < NO_SPREAD for row in history),
        "seconds": round(seconds, 1),
        "versions": {
            "specbench": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _csv(rows: list[dict[str, float]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, Progress._fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
