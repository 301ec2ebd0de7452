"""A training and its folder: log, checkpoint, and in the end the head.

While it lasts the folder holds ``training.csv`` (a row per step) and ``checkpoint.pt``; the head's
two files replace the checkpoint when it is done. A row is written before its checkpoint, so that a
training killed between the two writes it again.
"""

from __future__ import annotations

import io
import pickle
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.files import clear_errors, write_atomically
from specbench.heads.files import fingerprints, save_head
from specbench.tasks.task import Task
from specbench.training.folder import CHECKPOINT, LOG
from specbench.training.material import Materials, described, read_materials
from specbench.training.recipe import HeadRecipe
from specbench.training.verifier import (
    Progress,
    State,
    calibrate_bias,
    held_out_scores,
    new_state,
    train_step,
)
from specbench.version import __version__

NO_SPREAD = 1e-6  # of rewards: equal but for rounding


class Training(NamedTuple):
    """A training that can start or resume."""

    pair: LoadedPair
    task: Task
    recipe: HeadRecipe
    folder: Path
    materials: Materials
    state: State

    def identity(self) -> dict[str, dict[str, Any]]:
        """Return what must be the same for a training to resume."""
        target = self.pair.target
        return {
            "models": dict(fingerprints(self.pair)),
            "place": {"device": target.device.type, "dtype": str(target.model.dtype)},
            "task": {"name": self.task.name, "version": self.task.version},
            "data": _data(self.task),
            "recipe": self.recipe.model_dump(),
        }


def prepare(
    pair: LoadedPair, task: Task, recipe: HeadRecipe, folder: Path, resume: bool = False
) -> Training:
    """Read all prompts, and refuse what cannot be trained; nothing is written.

    Raises:
        UsageError: The checkpoint cannot be read or is of another training, the task has no
            training split, or most of its prompts are too long.
    """
    # First, as a dataset describes itself once it has been read.
    materials = read_materials(pair, task, recipe)
    training = Training(pair, task, recipe, folder, materials, new_state(pair, recipe))
    if resume and (folder / CHECKPOINT).exists():
        _load_checkpoint(training)
    return training


def carry_out(training: Training, report: Callable[[Progress], None]) -> dict[str, Any]:
    """Train a head, write it to its folder, and return its description in ``head.json``.

    ``report`` gets every step once its checkpoint is on disk, and first those before a resume.

    Raises:
        RunError: The folder cannot be written or the loss is not finite; the last checkpoint
            stays.
    """
    pair, task, recipe, folder, materials, state = training
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for row in state.history:
        report(Progress(**row))  # type: ignore[arg-type]  # a count is still an int in the history
    while state.step < recipe.steps:
        progress = train_step(pair, task, recipe, state, materials.train)
        state.history.append(progress._asdict())
        log = pd.DataFrame(state.history).to_csv(index=False, lineterminator="\n")
        write_atomically(folder / LOG, log)
        _save_checkpoint(training)
        report(progress)
    head = state.head.eval().requires_grad_(False)
    if recipe.target_acceptance is not None and materials.calibration is not None:
        calibrate_bias(pair, task, head, recipe.target_acceptance, materials.calibration)
    description = _describe(training, held_out_scores(pair, task, head, materials.held_out))
    save_head(head, folder, description)
    with clear_errors(folder):
        (folder / CHECKPOINT).unlink(missing_ok=True)
    return description


def _save_checkpoint(training: Training) -> None:
    state = training.state
    content = {
        **training.identity(),
        "step": state.step,
        "multiplier": state.multiplier,
        "baseline": state.baseline.mean,
        "history": state.history,
        "head": state.head.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "generator": state.generator.get_state(),
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(training.folder / CHECKPOINT, buffer.getvalue())


def _load_checkpoint(training: Training) -> None:
    """Put a training in the state of its folder's checkpoint; refuse one of another training."""
    path, state = training.folder / CHECKPOINT, training.state
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(f"cannot read {path} ({error}): train anew in another folder") from error
    for name, wanted in training.identity().items():
        if (found := content.get(name)) != wanted:
            raise UsageError(
                f"{path} is of a training with another {name} ({_difference(found, wanted)}): "
                "give the same values again, or train in another folder"
            )
    state.head.load_state_dict(content["head"])
    state.optimizer.load_state_dict(content["optimizer"])
    state.generator.set_state(content["generator"])
    state.baseline = state.baseline._replace(mean=content["baseline"])
    state.multiplier, state.step = content["multiplier"], content["step"]
    state.history = content["history"]


def _data(task: Task) -> dict[str, Any]:
    """What the examples are, wherever their files lie, and how their prompts are read."""
    known = {"prompt_format": task.prompt_format, **task.provenance()}
    for split, facts in known.pop("splits", {}).items():
        known |= {f"{split}'s {name}": value for name, value in facts.items()}
    moving = ("file", "revision")  # digest and commit identify the content
    return {name: v for name, v in known.items() if name.rpartition(" ")[2] not in moving}


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    """Name the values that differ, as ``steps 60 instead of 90``."""
    found = found if isinstance(found, dict) else {}
    return ", ".join(
        f"{name} {found.get(name)} instead of {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    )


def _describe(training: Training, scores: dict[str, Any]) -> dict[str, Any]:
    pair, task, recipe, _, materials, state = training
    history = state.history
    seconds = sum(row["rollout_seconds"] + row["update_seconds"] for row in history)
    return {
        "pair": pair.name,
        **described(task, materials.left_out()),
        "kind": recipe.head_kind,
        "models": fingerprints(pair),
        "hidden_sizes": {"target": pair.target.hidden_size, "draft": pair.draft.hidden_size},
        "recipe": recipe.model_dump(),
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
