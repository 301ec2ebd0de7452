"""All that a training of a head needs to go on: kept in one file, written whole or not at all."""

from __future__ import annotations

import io
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from specbench.engine.loading import LoadedPair
from specbench.errors import UsageError
from specbench.files import write_atomically
from specbench.heads.files import fingerprints
from specbench.heads.head import Head
from specbench.tasks.task import Task
from specbench.training.folder import CHECKPOINT
from specbench.training.objective import Baseline
from specbench.training.parts import Draws
from specbench.training.recipe import HeadRecipe


@dataclass
class State:
    """State of a training between two steps.

    Attributes:
        head: Head being trained.
        optimizer: Adam over it.
        draws: Where those of the next roll-outs begin.
        baseline: What gains are compared with.
        multiplier: lambda, or with a target acceptance the part of it that persists.
        step: Steps done.
        history: Rows of ``training.csv`` so far.
    """

    head: Head
    optimizer: torch.optim.Adam
    draws: Draws
    baseline: Baseline
    multiplier: float
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def untrained_head(pair: LoadedPair, recipe: HeadRecipe) -> Head:
    """Return the head that a training starts from."""
    sizes = (pair.target.hidden_size, pair.draft.hidden_size)
    head = Head(recipe.head_kind, sizes, recipe.initial_weight, recipe.seed)
    return head.to(pair.target.device)


def new_state(pair: LoadedPair, recipe: HeadRecipe) -> State:
    """Return the state before the first step."""
    head = untrained_head(pair, recipe)
    optimizer = torch.optim.Adam(head.parameters())
    return State(head, optimizer, recipe.seed, Baseline(recipe.baseline), recipe.acceptance_weight)


def save_state(
    state: State, pair: LoadedPair, task: Task, recipe: HeadRecipe, folder: Path
) -> None:
    """Write the checkpoint, in the place of the last one.

    Raises:
        SpecbenchError: It cannot be written; the last one is untouched.
    """
    content = {
        **_identity(pair, task, recipe),
        "step": state.step,
        "multiplier": state.multiplier,
        "baseline": state.baseline.mean,
        "history": state.history,
        "head": state.head.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "generator": state.draws,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(folder / CHECKPOINT, buffer.getvalue())


def load_state(pair: LoadedPair, task: Task, recipe: HeadRecipe, folder: Path) -> State:
    """Return the state that a training in a folder was left in.

    Raises:
        UsageError: The checkpoint cannot be read, or is of another pair, task or recipe.
    """
    path = folder / CHECKPOINT
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(f"cannot read {path} ({error}): train anew in another folder") from error
    for name, wanted in _identity(pair, task, recipe).items():
        if (found := content.get(name)) != wanted:
            raise UsageError(
                f"{path} is of a training with another {name} ({_difference(found, wanted)}): "
                "give the same values again, or train in another folder"
            )
    state = new_state(pair, recipe)
    state.head.load_state_dict(content["head"])
    state.optimizer.load_state_dict(content["optimizer"])
    state.draws = content["generator"]
    state.baseline = state.baseline._replace(mean=content["baseline"])
    state.multiplier, state.step = content["multiplier"], content["step"]
    state.history = content["history"]
    return state


def _identity(pair: LoadedPair, task: Task, recipe: HeadRecipe) -> dict[str, dict[str, Any]]:
    """What must be the same for a training to go on."""
    return {
        "models": dict(fingerprints(pair)),
        "place": {"device": pair.target.device.type, "dtype": str(pair.target.model.dtype)},
        "task": {"name": task.name, "version": task.version},
        "data": _data(task),
        "recipe": asdict(recipe),
    }


def _data(task: Task) -> dict[str, Any]:
    """What the examples are, wherever they lie by now, and how their prompts are read."""
    known = {"prompt_format": task.prompt_format, **task.provenance()}
    for split, facts in known.pop("splits", {}).items():
        known |= {f"{split}'s {name}": value for name, value in facts.items()}
    moving = ("file", "revision")  # digest and commit say which content it was
    return {name: v for name, v in known.items() if name.rpartition(" ")[2] not in moving}


def _difference(found: Any, wanted: dict[str, Any]) -> str:
    """Name the values that differ, as ``steps 60 instead of 90``."""
    found = found if isinstance(found, dict) else {}
    return ", ".join(
        f"{name} {found.get(name)} instead of {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    )
