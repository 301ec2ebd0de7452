"""The search for the head of a pair and a task.

A head is a folder with ``head.safetensors`` (weights) and ``head.json`` (description), or the
single file that the authors of DIVERSED published. This module does not import torch.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from specbench.decoding.heads.kinds import LINEAR
from specbench.engine.pairs import PairSpec, pairs
from specbench.errors import UsageError, printable
from specbench.runs.labels import BUNDLED, FAMILIES, RESULTS, SEED, UNTRAINED, VARIANTS, recipe_of
from specbench.schema import StrictModel, validated

WEIGHTS = "head.safetensors"
DESCRIPTION = "head.json"
RELEASED = ".bin"  # suffix of the authors' file
TRAINED = Path("results/heads")  # output of `specbench train`, by pair and task

MOST_BYTES = {WEIGHTS: 2**26, DESCRIPTION: 2**20, RELEASED: 2**26}  # by name or suffix of a file


class _Recipe(StrictModel, extra="ignore"):
    target_acceptance: float | None = None
    max_quality_loss: float | None = None


class _Worth(StrictModel, extra="ignore"):
    better: bool | None
    sentence: str


class _Description(StrictModel, extra="ignore"):
    """What is used of ``head.json``; the other keys are for the reader."""

    kind: str | None = None
    task: str | None = None
    pair: str | None = None
    models: dict[str, str] | None = None
    hidden_sizes: dict[str, int] | None = None
    recipe: _Recipe | None = None
    worth: _Worth | None = None


class HeadFile(NamedTuple):
    """A head on disk, or the untrained one, with its name in options and tables."""

    name: str
    path: Path


def trained_heads(pair: str) -> Path:
    """Return the folder in which ``specbench train`` saves the heads of a pair."""
    return TRAINED / pair.replace("/", "-")


def find_head(
    spec: PairSpec, task: str, head: str | None = None, *, trainable: bool = True
) -> HeadFile:
    """Return the head of a pair for a task: the named one, else bundled, else in ``results``.

    ``head`` is ``PAIR/TASK`` of a bundled head, a head's folder or one of its files, the authors'
    file, a folder with one head folder per task, ``bundled`` or ``results`` to search only there,
    the name of a task that has a head in one of them, or ``untrained``. ``trainable`` is False for
    a file of prompts.
    """
    if head == UNTRAINED:
        return HeadFile(UNTRAINED, Path(UNTRAINED))
    bundled = {} if spec.heads is None else {BUNDLED: spec.heads}
    folders = bundled | {RESULTS: trained_heads(spec.name)}  # searched in this order
    if head not in (None, BUNDLED, RESULTS):
        by_name = bundled_heads() | {n: other.path for n, other in _heads_in(folders).items()}
        path = None if Path(head).exists() else by_name.get(head)
        return HeadFile(head, path or _given_head(Path(head), task))
    for name, folder in folders.items():
        if head in (None, name) and is_head(folder / task):
            return HeadFile(name, folder / task)
    if not trainable:
        names = ", ".join(_heads_in(folders))
        raise UsageError(
            f"pair {spec.name} has no head for the prompts {task}: name one with --head"
            f"{f' ({names})' if names else ''}, or leave out methods with a head"
        )
    command = f"`specbench train --task {task}` and these models"
    if spec.name in pairs():
        command = f"`specbench train --pair {spec.name} --task {task}`"
    raise UsageError(
        f"pair {spec.name} has no {'head' if head is None else head + ' head'} for {task}: train "
        f"one with {command}, name one with --head, or leave out methods with a head"
    )


def bundled_heads() -> dict[str, Path]:
    """Return the folders of the bundled heads by name, ``PAIR/TASK``."""
    return {
        f"{pair}/{folder.name}": folder
        for pair, spec in pairs().items()
        for folder in (sorted(spec.heads.iterdir()) if spec.heads else ())
        if is_head(folder)
    }


def listed_heads() -> list[dict[str, str]]:
    """Return what ``--head`` may name: the bundled heads, and those under ``TRAINED``."""
    trained = sorted(path.parent for path in TRAINED.rglob(WEIGHTS) if is_head(path.parent))
    heads = [HeadFile(name, path) for name, path in bundled_heads().items()]
    heads += [HeadFile(str(folder), folder) for folder in trained]
    tasks = [training_of(head).get("task", "") for head in heads]
    return [
        {"head": head.name, "task": task, "description": _brief(head, task)}
        for head, task in zip(heads, tasks, strict=True)
    ]


def expand_family(name: str) -> list[str]:
    """Return the folders of a family (``acceptance-0.9``, ``seed-0``) in order, or ``name``."""
    heads = [head for folder in _members(Path(name)) for head in _members(folder) or [folder]]
    return [str(head) for head in heads] or [name.rstrip("/") or name]


def _members(family: Path) -> list[Path]:
    def by_number(folder: Path) -> tuple[str, float, str]:
        prefix, _, number = folder.name.rpartition("-")
        try:
            return prefix, float(number), folder.name
        except ValueError:
            return prefix, math.inf, folder.name

    folders = [folder for prefix in VARIANTS.values() for folder in family.glob(f"{prefix}*")]
    return sorted((folder for folder in folders if folder.is_dir()), key=by_number)


def named_by_recipe(heads: Iterable[HeadFile]) -> dict[HeadFile, HeadFile]:
    """Return heads whose folders hide that they differ in their seed alone, with other names.

    ``a`` and ``b`` with seeds 0 and 1 become ``a+b/seed-0`` and ``a+b/seed-1``, by which tables
    know that they are of one recipe and print their mean.
    """
    recipes: dict[str, dict[int, HeadFile]] = {}
    for head in heads:
        if not is_head(head.path) or recipe_of(head.name):
            continue
        with suppress(UsageError):  # loading it will report the error
            description = read_description(head.path)
            recipe = dict(description.get("recipe") or {})
            seed = recipe.pop("seed", None)
            alike = [recipe, *(description.get(name) for name in ("kind", "task", "models"))]
            if isinstance(seed, int):
                recipes.setdefault(json.dumps(alike), {}).setdefault(seed, head)
    names: dict[HeadFile, HeadFile] = {}
    for seeds in recipes.values():
        joined = "+".join(head.name.strip("/").replace("/", ".") for head in seeds.values())
        of_seeds = {h: HeadFile(f"{joined}/{SEED}{seed}", h.path) for seed, h in seeds.items()}
        names |= of_seeds if len(seeds) > 1 else {}
    return names


def training_of(head: HeadFile) -> dict[str, Any]:
    """Return a head's kind, task and goal, and its worth if it has none, as far as known."""
    if head.path.suffix == RELEASED or head.name == UNTRAINED:
        return {"kind": LINEAR}
    try:
        description = read_description(head.path)
    except UsageError:
        return {}  # loading it will report the error
    goals = {name: (description.get("recipe") or {}).get(name) for name in FAMILIES}
    worth = description.get("worth") or {}
    values = {"kind": description.get("kind"), "task": description.get("task"), **goals}
    if worth.get("better") is False:
        values["worth"] = worth["sentence"]
    return {name: value for name, value in values.items() if value is not None}


def read_description(folder: Path) -> dict[str, Any]:
    """Return the content of ``head.json``, which anyone may have written."""
    path = folder / DESCRIPTION
    try:
        values = json.loads(read_bounded(path))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(folder, error) from error
    try:
        validated(_Description, values, str(path))
    except UsageError as error:
        raise UsageError(f"{error}; train one again") from error
    return dict(values)


def read_bounded(path: Path) -> bytes:
    """Return the content of a head's file; ``OSError`` if it is larger than any head."""
    most = MOST_BYTES.get(path.name) or MOST_BYTES[path.suffix]
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"{path.name} is larger than {most} bytes")
    return content


def unreadable(path: Path, error: Exception) -> UsageError:
    """Return the error that a head's file cannot be read."""
    lines = printable(str(error)).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return UsageError(f"cannot read the head in {path} ({reason}): train it again")


def describe_heads(used: Iterable[tuple[str, HeadFile]], pair: str) -> str:
    """Return one line on which head is used for which task of a pair, from (task, head) pairs."""
    tasks: dict[str, list[str]] = {}
    for task, head in dict.fromkeys(used):
        source = str(head.path.parent) if head.name == RESULTS else head.name
        tasks.setdefault(f"{source} ({_brief(head, task, pair)})", []).append(task)
    return "; ".join(f"{head} on {', '.join(served)}" for head, served in tasks.items())


def is_head(folder: Path) -> bool:
    """Return whether a folder holds a complete head."""
    return (folder / WEIGHTS).is_file() and (folder / DESCRIPTION).is_file()


def _heads_in(folders: Mapping[str, Path]) -> dict[str, HeadFile]:
    """Return the heads in these folders by training task; earlier folders take precedence."""
    heads: dict[str, HeadFile] = {}
    for name, parent in folders.items():
        for folder in parent.glob("*"):
            if is_head(folder):
                heads.setdefault(folder.name, HeadFile(name, folder))
    return dict(sorted(heads.items()))


def _brief(head: HeadFile, task: str, pair: str = "") -> str:
    """Return a head's kind, goal, task and pair if they differ, and whether it is useless."""
    training = training_of(head)
    parts = [training.get("kind", "of unknown kind")]
    if head.path.suffix == RELEASED:
        parts = ["the authors' file"]
    if "target_acceptance" in training:
        # Per position; a run's accepted / drafted is lower.
        parts.append(f"target acceptance {training['target_acceptance']:g} per position")
    if "max_quality_loss" in training:
        parts.append(f"at most {training['max_quality_loss']:g} points below the target")
    trained_for = [training["task"]] if training.get("task", task) != task else []
    with suppress(UsageError):  # loading it will report the error
        of_pair = read_description(head.path).get("pair")
        if pair and of_pair not in (None, pair):
            trained_for.append(f"pair {of_pair}")
    if trained_for:
        parts.append(f"trained for {' on '.join(trained_for)}")
    if "worth" in training:
        parts.append(f"in training it was {training['worth']}")
    return ", ".join(parts)


def _given_head(head: Path, task: str) -> Path:
    if not head.exists():
        raise UsageError(
            f"there is no head at {head}: give --head a head's folder or file, or one of "
            "`specbench list heads`"
        )
    if head.is_file() and head.suffix == RELEASED:
        return head
    candidates = (head.parent,) if head.name in (WEIGHTS, DESCRIPTION) else (head / task, head)
    for folder in candidates:
        if is_head(folder):
            return folder
    raise UsageError(
        f"{head} holds no head for {task}: a head is a folder with {WEIGHTS} and {DESCRIPTION}, "
        f"or the authors' {RELEASED} file"
    )
