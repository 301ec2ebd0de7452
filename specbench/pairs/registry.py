"""The model pairs of ``pairs.toml``, pairs named by the user, and the heads that fit them.

A head is a folder with ``head.safetensors`` (its weights) and ``head.json`` (what it was trained
on). Adding a pair is adding a table to ``pairs.toml``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from specbench.errors import UsageError

PAIRS_FILE = Path(__file__).with_name("pairs.toml")
PARTS = ("target", "draft", "heads")  # of a bundled pair, each a folder
HEAD_WEIGHTS = "head.safetensors"
HEAD_DESCRIPTION = "head.json"


@dataclass(frozen=True)
class PairSpec:
    """What must be known of a pair before its models are loaded.

    Attributes:
        name: Name in results, for instance ``mini``.
        target: Hugging Face id or folder of the target model.
        draft: Hugging Face id or folder of the draft model.
        description: One line for ``specbench list pairs``.
        heads: Folder with one trained head per task, or None.
        dtype: Number format unless the user chooses another; ``auto`` is bfloat16 on a GPU and
            float32 on a CPU.
    """

    name: str
    target: str
    draft: str
    description: str = ""
    heads: Path | None = None
    dtype: str = "auto"


@cache
def pairs() -> dict[str, PairSpec]:
    """Return the known pairs by name, in the order of ``pairs.toml``."""
    tables = tomllib.loads(PAIRS_FILE.read_text(encoding="utf-8"))
    return {name: _from_table(name, table) for name, table in tables.items()}


def get_pair(name: str) -> PairSpec:
    """Return the pair called ``name``.

    Raises:
        UsageError: No pair has that name.
    """
    known = pairs()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"
    raise UsageError(f"there is no pair {name!r}: {hint}")


def custom_pair(target: str, draft: str) -> PairSpec:
    """Return a pair of two models named by the user, each a Hugging Face id or a folder."""
    name = "+".join(model.rstrip("/").rsplit("/", 1)[-1] for model in (target, draft))
    return PairSpec(name, target, draft, description="named on the command line")


def find_head(spec: PairSpec, task: str, head: Path | None = None) -> Path:
    """Return the folder of the head for a pair and a task.

    Args:
        spec: The pair.
        task: Name of the task.
        head: A head's folder or one of its two files, or a folder with a head folder per task;
            without it, the head that comes with the pair.

    Raises:
        UsageError: There is no such head.
    """
    if head is None:
        if spec.heads is None or not _is_head(spec.heads / task):
            raise UsageError(
                f"pair {spec.name} has no head for {task}: name one with --head, "
                "or leave out diversed"
            )
        return spec.heads / task
    if not head.exists():
        raise UsageError(f"there is no head at {head}: --head names a head's folder or file")
    named = head.name in (HEAD_WEIGHTS, HEAD_DESCRIPTION)
    candidates = (head.parent,) if named else (head / task, head)
    for folder in candidates:
        if _is_head(folder):
            return folder
    raise UsageError(
        f"{head} holds no head for {task}: a head is a folder with "
        f"{HEAD_WEIGHTS} and {HEAD_DESCRIPTION}"
    )


def _is_head(folder: Path) -> bool:
    return (folder / HEAD_WEIGHTS).is_file() and (folder / HEAD_DESCRIPTION).is_file()


def _from_table(name: str, table: dict[str, str]) -> PairSpec:
    heads = table.get("heads")
    return PairSpec(
        name=name,
        target=_beside(table["target"]),
        draft=_beside(table["draft"]),
        description=table["description"],
        heads=None if heads is None else Path(_beside(heads)),
        dtype=table.get("dtype", "auto"),
    )


def _beside(model: str) -> str:
    """Turn ``./folder`` into a path beside ``pairs.toml``; leave a Hugging Face id as it is."""
    return str(PAIRS_FILE.parent / model) if model.startswith("./") else model
