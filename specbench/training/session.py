"""Running a training: its log, its checkpoints and the finished head.

During training the folder contains ``training.csv`` (a row per step) and ``checkpoint.pt``, the
first ones with static weights that are measured before the first step; at the end the head's two
files replace the checkpoint. A row is written before its checkpoint, so a training killed between
the two repeats the step and its row.
"""

from __future__ import annotations

import io
import logging
import pickle
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from specbench import __version__
from specbench.decoding.heads.head import fingerprints, save_head
from specbench.engine.pair import LoadedPair
from specbench.errors import RunError, UsageError
from specbench.files import clear_errors, make_folder, write_atomically
from specbench.runs.configuration import differences_of
from specbench.runs.labels import LOG
from specbench.tasks.task import Task
from specbench.training.front import NothingToLearnError, Point
from specbench.training.goal import Checked, Multiplier
from specbench.training.material import read_materials
from specbench.training.objective import Scored, TrainingStep
from specbench.training.recipe import CHECKPOINT, HeadRecipe
from specbench.training.rollouts import Rollouts
from specbench.training.verifier import Training, draw_texts

logger = logging.getLogger(__name__)

NO_SPREAD = 1e-6  # of rewards; smaller spreads are rounding errors


def prepare(
    pair: LoadedPair, task: Task, recipe: HeadRecipe, folder: Path, resume: bool = False
) -> Training:
    """Encode all prompts and restore a checkpoint if ``resume`` is set; writes nothing."""
    # Before the checkpoint, since a dataset's provenance is known only once it has been read.
    training = Training(pair, task, recipe, read_materials(pair, task, recipe))
    if resume and (folder / CHECKPOINT).exists():
        _load_checkpoint(training, folder / CHECKPOINT)
    return training


def start(
    training: Training,
    folder: Path,
    trainings: Mapping[Path, Training],
    show: Callable[[str], object] = lambda text: None,
) -> None:
    """Measure what comes before the first step, as far as no checkpoint has it.

    ``trainings`` are all that share its front, by folder, this one among them. What one has
    measured counts for all, and each gets a checkpoint. ``show`` is called with what is done now.
    Where there is nothing to learn, nothing is written.
    """
    if training.begun:
        return
    name = training.task.name
    measured = [other.static for other in trainings.values() if other.front_is_measured]
    training.static = next(iter(measured), training.static)
    make_folder(folder)

    def keep(done: int, prompts: int) -> None:
        _save_checkpoint(training, folder / CHECKPOINT)
        logger.warning(f"{name}: static weights on {done} of {prompts} prompts")
        show(f"{front}, {done} of {prompts} done")

    front = f"{name}: texts of the static weights on held-out prompts"
    show(front)
    try:
        training.measure_front(keep)
        for other_folder, other in trainings.items():
            if not other.static:
                other.static = training.static
                make_folder(other_folder)
                _save_checkpoint(other, other_folder / CHECKPOINT)
        training.begin()
    except NothingToLearnError:
        with suppress(OSError):  # the folder may have other files
            (folder / CHECKPOINT).unlink(missing_ok=True)
            folder.rmdir()
        raise
    _save_checkpoint(training, folder / CHECKPOINT)


def carry_out(
    trainings: Mapping[Path, Training], report: Callable[[Path, TrainingStep], None]
) -> list[dict[str, Any]]:
    """Train heads that share batches, and return their descriptions in ``head.json``.

    They share a front (``Training.shares_front_with``), and are written to their folders. If one
    cannot learn further, the others are trained before the error is raised. After an error, the
    last checkpoints remain. ``report`` gets every step after its checkpoint is written, and first
    those before a resume.
    """
    for folder, training in trainings.items():
        start(training, folder, trainings)
        for progress in training.history:
            report(folder, progress)
    failed: dict[Path, str] = {}
    left, first = {**trainings}, min(len(training.history) for training in trainings.values())
    while left := {f: t for f, t in left.items() if len(t.history) < t.recipe.steps}:
        # After a kill between two checkpoints, some are a step ahead.
        done = min(len(training.history) for training in left.values())
        now = {folder: t for folder, t in left.items() if len(t.history) == done}
        for (folder, training), texts in zip(now.items(), draw_texts([*now.values()]), strict=True):
            try:
                progress = training.learn(*texts)
            except RunError as error:  # as a loss that is not finite
                failed[folder] = f"{folder}: {error}"
                del left[folder]
                continue
            log = pd.DataFrame(training.history).to_csv(index=False, lineterminator="\n")
            write_atomically(folder / LOG, log)
            _save_checkpoint(training, folder / CHECKPOINT)
            report(folder, progress)
        steps = [training.history[-1] for f, training in now.items() if f not in failed]
        if done == first and steps:
            pace = sum(step.rollout_seconds + step.update_seconds for step in steps)  # no checks
            rest = training.recipe.steps - done - 1
            logger.warning(f"{training.task.name}: a step takes {pace:.1f} s, and {rest} are left")
    descriptions = []
    for folder, training in ((f, t) for f, t in trainings.items() if f not in failed):
        training.restore_best()
        logger.warning(f"{training.task.name}: last, the final measurement")
        descriptions.append(_describe(training))
        save_head(training.head, folder, descriptions[-1])
        with clear_errors(folder):
            (folder / CHECKPOINT).unlink(missing_ok=True)
    if failed:
        raise RunError("; ".join(failed.values()))
    return descriptions


def _save_checkpoint(training: Training, path: Path) -> None:
    content = {**_identity(training), "step": len(training.history)}
    content["static"] = [point.lists() for point in training.static]
    if training.begun:
        content |= {
            "multiplier": training.multiplier._asdict(),
            "best": None if training.best is None else training.best._asdict(),
            "history": [progress._asdict() for progress in training.history],
            "head": training.head.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "generator": training.generator.get_state(),
            "scored": [(*step.rollouts, *step[1:]) for step in training.scored],
        }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(path, buffer.getvalue())


def _load_checkpoint(training: Training, path: Path) -> None:
    """Restore a training from its checkpoint; raise ``UsageError`` for another training's."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise UsageError(f"cannot read {path} ({error}): train again in another folder") from error
    identity = _identity(training)
    try:
        if content["recipe"].keys() != identity["recipe"].keys():
            raise KeyError("recipe")
        for name, expected in identity.items():
            if (value := content.get(name)) != expected:
                apart = differences_of(value or {}, expected, set())
                values = ", ".join(f"{d.name} {d.first} instead of {d.second}" for d in apart)
                raise UsageError(
                    f"{path} is from a training with another {name} ({values}): use the same "
                    "values, or train in another folder"
                )
        training.static = [Point.from_lists(values) for values in content["static"]]
        if "head" in content:
            training.begin()
            training.head.load_state_dict(content["head"])
            training.optimizer.load_state_dict(content["optimizer"])
            training.multiplier = Multiplier(**content["multiplier"])
            training.best = content["best"] and Checked(**content["best"])
            training.generator.set_state(content["generator"])
            training.history = [TrainingStep(**row) for row in content["history"]]
            device = training.pair.target.device
            for texts, cut, *columns in content["scored"]:
                *of_tokens, likelihood, reward = (column.to(device) for column in columns)
                rollouts = Rollouts(texts, cut, *of_tokens)
                training.scored.append(Scored(rollouts, likelihood, reward))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged or from another version of specbench: train again in another folder"
        ) from error


def _identity(training: Training) -> dict[str, dict[str, Any]]:
    """Return the values that must not change when a training resumes."""
    pair, task, target = training.pair, training.task, training.pair.target
    return {
        "models": dict(fingerprints(pair)),
        "place": {"device": target.device.type, "dtype": str(target.dtype)},
        "task": {
            **{"name": task.name, "version": task.version, "metric": training.metric.name},
            **{"stop": [*task.stop], "tokens of a text": training.tokens},
        },
        "data": _data(task),
        "recipe": training.recipe.model_dump(),
    }


def _data(task: Task) -> dict[str, Any]:
    """Identity of the examples, independent of file locations, and the prompt format."""
    identity = {"prompt_format": task.prompt_format, **task.provenance()}
    for split, data in identity.pop("splits", {}).items():
        identity |= {f"{split}'s {name}": value for name, value in data.items()}
    moving = ("file", "revision")  # digest and commit identify the content
    return {name: v for name, v in identity.items() if name.rpartition(" ")[2] not in moving}


def _describe(training: Training) -> dict[str, Any]:
    pair, task, history = training.pair, training.task, training.history
    seconds = sum(progress.rollout_seconds + progress.update_seconds for progress in history)
    return {
        "pair": pair.name,
        **{"task": task.name, "task_version": task.version, "prompt_format": task.prompt_format},
        **{"data": task.provenance(), "left_out": training.materials.left_out()},
        "kind": training.recipe.head_kind,
        "models": fingerprints(pair),
        "hidden_sizes": {"target": pair.target.hidden_size, "draft": pair.draft.hidden_size},
        "recipe": training.recipe.model_dump(),
        "slope": training.slope,  # score per unit of acceptance; lambda is relative to it
        "best_step": training.best and training.best.step,
        "best_distance": training.best and training.best.distance,
        "measured_distances": {
            p.step: p.held_out_distance for p in history if p.held_out_distance is not None
        },
        "worth": training.measure_worth().described(training.metric),
        "steps_without_gradient": sum(p.reward_spread < NO_SPREAD for p in history),
        "seconds": round(seconds, 1),
        "versions": {"specbench": __version__, "torch": torch.__version__}
        | {"python": platform.python_version()},
    }
