"""Building a bundled pair from its recipe: models first, then a head per task."""

from __future__ import annotations

import platform
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from specbench import __version__
from specbench.engine.heads import fingerprints, save_head
from specbench.engine.loading import LoadedPair, load_pair
from specbench.errors import UsageError
from specbench.pairs.registry import PARTS, PairSpec
from specbench.tasks.task import load_task
from specbench.training.pretrain import ModelRecipe, build_model, build_tokenizer, train
from specbench.training.verifier import HeadRecipe, evaluate_head, train_head

VALIDATION = 200  # examples that a head's scores come from
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
        spec = PairSpec(recipe.parent.name, str(folder / "target"), str(folder / "draft"))
        pair = load_pair(spec, "cpu", "float32")
        for task, settings in tables["heads"].items():
            _build_head(pair, task, HeadRecipe(**settings), folder / "heads" / task, say)


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


def _build_head(
    pair: LoadedPair, task_name: str, recipe: HeadRecipe, folder: Path, say: Say
) -> None:
    task = load_task(task_name)
    needed = recipe.updates * recipe.prompts
    examples = task.examples("train", needed)
    head = train_head(
        pair,
        task,
        examples,
        recipe,
        lambda p: say(
            f"head {task_name}: update {p.update}, reward {p.reward:.3f}, "
            f"acceptance {p.acceptance:.3f}, weight {p.weight:.3f}"
        ),
    )
    # Another seed: examples that neither the models nor the head were trained on.
    unseen = task.examples("train", VALIDATION, seed=1)
    scores = evaluate_head(pair, task, head, unseen, recipe.seed)
    say(f"head {task_name}: held-out {scores}")
    description = {
        "pair": pair.name,
        "task": task.name,
        "task_version": task.version,
        "kind": "linear",
        "models": fingerprints(pair),
        "hidden_sizes": {"target": pair.target.hidden_size, "draft": pair.draft.hidden_size},
        "recipe": vars(recipe),
        "scores": scores,
        "versions": {
            "specbench": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    save_head(head, folder, description)
