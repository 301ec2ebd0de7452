"""The model pairs of ``pairs.toml``, and pairs named by the user.

Adding a pair is adding a table to ``pairs.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from specbench.errors import UsageError

PAIRS_FILE = Path(__file__).with_name("pairs.toml")
PARTS = ("target", "draft", "heads")  # of a bundled pair, each a folder


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
        training: What differs for this pair from the usual recipe of a head.
    """

    name: str
    target: str
    draft: str
    description: str = ""
    heads: Path | None = None
    dtype: str = "auto"
    training: Mapping[str, Any] = field(default_factory=dict)


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


def with_draft(pair: PairSpec, draft: str) -> PairSpec:
    """Return a pair with another draft; no head fits it, and its name says so."""
    name = f"{pair.name}+{draft.rstrip('/').rsplit('/', 1)[-1]}"
    return replace(pair, name=name, draft=draft, heads=None)


def _from_table(name: str, table: dict[str, Any]) -> PairSpec:
    heads = table.get("heads")
    return PairSpec(
        name=name,
        target=_beside(table["target"]),
        draft=_beside(table["draft"]),
        description=table["description"],
        heads=None if heads is None else Path(_beside(heads)),
        dtype=table.get("dtype", "auto"),
        training=table.get("training", {}),
    )


def _beside(model: str) -> str:
    """Turn ``./folder`` into a path beside ``pairs.toml``; leave a Hugging Face id as it is."""
    return str(PAIRS_FILE.parent / model) if model.startswith("./") else model
