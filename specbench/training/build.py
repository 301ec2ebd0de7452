"""Building a bundled pair from its recipe: models first, then a head per task."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from specbench.engine.loading import load_pair
from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.pairs.registry import PARTS, PairSpec
from specbench.tasks.task import load_task
from specbench.training.pretrain import ModelRecipe, build_model, build_tokenizer, train
from specbench.training.recipe import head_recipe
from specbench.training.session import train_into
from specbench.training.verifier import Progress

Say = Callable[[str], None]


def build(recipe: Path, folder: Path, parts: tuple[str, ...], say: Say) -> None:
    """Build parts of a pair; parts not named are taken from the folder as they are.

    Args:
        recipe: ``recipe.toml`` of the pair.
        folder: Gets ``target``, ``draft`` and ``heads/<task>``.
        parts: Some of ``PARTS``.
        say: Called with a line for the user now and then.

    Raises:
        UsageError: The folder cannot be written, or lacks a part that is not to be built.
    """
    tables = tomllib.loads(recipe.read_text(encoding="utf-8"))
    folder = folder.resolve()  # a relative path could pass for a model's id on the hub
    _prepare(folder, parts)
    for role in ("target", "draft"):
        if role in parts:
            _build_model(tables, role, folder / role, say)
    if "heads" in parts:
        target, draft = (str(folder / role) for role in PARTS[:2])
        spec = PairSpec(recipe.parent.name, target, draft, training=tables.get("heads", {}))
        pair = load_pair(spec, Loading(device="cpu", dtype="float32"))
        for task in map(load_task, tables["examples"]):
            where = folder / "heads" / task.name
            report = partial(_say_progress, say, task.name)
            known = train_into(pair, task, head_recipe(spec, task, {}), where, report)
            say(f"head {task.name}: held-out {known['scores']}")


def _say_progress(say: Say, task: str, progress: Progress) -> None:
    say(f"head {task}: {progress}")


def _prepare(folder: Path, parts: tuple[str, ...]) -> None:
    """Refuse before an hour of training what could only fail after it."""
    try:
        for part in parts:
            (folder / part).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder / part):
                pass
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror}): name another folder with --output"
        ) from error
    missing = [r for r in PARTS[:2] if r not in parts and not (folder / r / "config.json").exists()]
    if "heads" in parts and missing:
        raise UsageError(
            f"{folder} has no {missing[0]}, which heads are trained on: add --part {missing[0]}"
        )


def _build_model(tables: dict[str, Any], role: str, folder: Path, say: Say) -> None:
    recipe = ModelRecipe(**tables[role])
    tokenizer = build_tokenizer(**tables["tokenizer"])
    model = build_model(recipe, tokenizer)
    say(f"{role}: {model.num_parameters():,} parameters, {recipe.steps} steps")
    recent: dict[str, list[float]] = {}

    def report(step: int, losses: dict[str, float]) -> None:
        for name, loss in losses.items():
            recent.setdefault(name, []).append(loss)
        if step % 50 == 0:
            means = (f"{name} {sum(last) / len(last):.3f}" for name, last in recent.items())
            say(f"{role}: step {step}, loss {', '.join(means)}")
            recent.clear()

    train(model, tokenizer, recipe, tables["examples"], report)
    # Half the size on disk; quality was the same within its interval when this was measured.
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
