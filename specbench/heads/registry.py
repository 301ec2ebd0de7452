"""The kinds of head by name, and where the head for a pair and a task lies.

A head is a folder with ``head.safetensors`` (its weights) and ``head.json`` (what it was trained
on), or the single file that the authors of DIVERSED published. Nothing here imports torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.pairs.registry import PairSpec

LINEAR, MLP, FEATURES = "linear", "mlp", "features"
KINDS = {
    LINEAR: "one linear layer on both hidden states, the paper's",
    MLP: "one hidden layer on both hidden states",
    FEATURES: "a small network on entropies, top probabilities and disagreement",
}

WEIGHTS = "head.safetensors"
DESCRIPTION = "head.json"
RELEASED = ".bin"  # suffix of the authors' file
TRAINED = Path("results/heads")  # where `specbench train` writes, by pair and task

BUNDLED, RESULTS = "bundled", "results"
FAMILY = "acceptance-"  # and a target acceptance: a folder of heads trained for it


class HeadFile(NamedTuple):
    """A head on disk.

    Attributes:
        name: What tables call it: ``bundled``, ``results``, or what the user typed.
        path: Its folder, or the authors' file.
    """

    name: str
    path: Path


def trained_heads(pair: str) -> Path:
    """Return the folder below which ``specbench train`` puts the heads of a pair."""
    return TRAINED / pair.replace("/", "-")


def find_head(spec: PairSpec, task: str, given: str | None = None) -> HeadFile:
    """Return the head for a pair and a task: the given one, else bundled, else trained here.

    Args:
        spec: The pair.
        task: Name of the task.
        given: A head's folder or one of its files, the authors' file, a folder with a head folder
            per task, or ``bundled`` or ``results`` to look only there.

    Raises:
        UsageError: There is no such head.
    """
    places = {BUNDLED: spec.heads, RESULTS: trained_heads(spec.name)}
    if given is not None and given not in places:
        return HeadFile(given, _given_head(Path(given), task))
    for name, folder in places.items():
        if given in (None, name) and folder is not None and is_head(folder / task):
            return HeadFile(name, folder / task)
    raise UsageError(
        f"pair {spec.name} has no head for {task}: train one with `specbench train --pair "
        f"{spec.name} --task {task}`, name one with --head, or leave out diversed"
    )


def expand_family(given: str) -> list[str]:
    """Return the members of a family of heads, least acceptance first; else what was given.

    A family is a folder with a folder ``acceptance-A`` for each target acceptance A.
    """
    members = sorted(str(folder) for folder in Path(given).glob(f"{FAMILY}*") if folder.is_dir())
    return members or [given]


def describe_head(head: HeadFile, task: str) -> str:
    """Say in a few words which head serves a task, and what it was made for if not that."""
    if head.path.suffix == RELEASED:
        return f"{task} {head.path} (the authors' file)"
    known = json.loads((head.path / DESCRIPTION).read_text(encoding="utf-8"))
    where = head.name if head.name == BUNDLED else str(head.path)
    trained = known.get("task", task)
    other = "" if trained == task else f", trained for {trained}"
    return f"{task} {where} ({known.get('kind', LINEAR)}{other})"


def is_head(folder: Path) -> bool:
    """Tell whether a folder holds a whole head."""
    return (folder / WEIGHTS).is_file() and (folder / DESCRIPTION).is_file()


def _given_head(head: Path, task: str) -> Path:
    if not head.exists():
        raise UsageError(f"there is no head at {head}: --head names a head's folder or file")
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
