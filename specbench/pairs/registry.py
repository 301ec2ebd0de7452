"""The model pairs of ``pairs.toml``, of a user's own file, and pairs named by their models.

Adding a pair is adding a table to ``pairs.toml``, or to a file of the same form.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.pairs.checked import checked
from specbench.words import unknown

PAIRS_FILE = Path(__file__).with_name("pairs.toml")
PARTS = ("target", "draft", "heads")  # of a bundled pair, each a folder

_IN_A_FILE = re.compile(r"(?P<file>.+\.toml)(:(?P<name>.+))?")


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
        target_revision: Branch, tag or commit of the target's repository; None is the newest.
        draft_revision: The same of the draft's.
        thinking: Whether a model that can think before it answers (Qwen3) does so.
        architecture: Values of the configuration of ``target`` and ``draft``, by which random
            weights of the real architecture are made without the hub.
        file: Where it was read from, for messages; None for models named on the command line.
    """

    name: str
    target: str
    draft: str
    description: str = ""
    heads: Path | None = None
    dtype: str = "auto"
    training: Mapping[str, Any] = field(default_factory=dict)
    target_revision: str | None = None
    draft_revision: str | None = None
    thinking: bool = False
    architecture: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    file: Path | None = None

    @property
    def bundled(self) -> bool:
        """True where both models come with specbench."""
        return all(Path(m).is_relative_to(PAIRS_FILE.parent) for m in (self.target, self.draft))


@cache
def pairs() -> dict[str, PairSpec]:
    """Return the known pairs by name, in the order of ``pairs.toml``."""
    return read_pairs(PAIRS_FILE)


def read_pairs(path: Path) -> dict[str, PairSpec]:
    """Return the pairs of a file by name, in their order.

    Raises:
        UsageError: The file cannot be read or is no pair file; the message names file and table.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the pair file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    if not tables:
        raise UsageError(f"{path}: holds no pair; add a table with `target` and `draft`")
    try:
        return {
            name: _from_table(name, checked(name, table), path) for name, table in tables.items()
        }
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def get_pair(name: str) -> PairSpec:
    """Return a pair by its name, or from a file: ``pairs.toml``, ``folder/pairs.toml:name``.

    Raises:
        UsageError: No pair has that name, or the file is no pair file.
    """
    if match := _IN_A_FILE.fullmatch(name):
        return _from_file(Path(match["file"]), match["name"])
    return _named(name, pairs())


def _from_file(path: Path, name: str | None) -> PairSpec:
    found = read_pairs(path)
    first = next(iter(found))
    if name is None and len(found) > 1:
        raise UsageError(
            f"{path}: holds several pairs ({', '.join(found)}); name one, as in {path}:{first}"
        )
    try:
        return _named(name or first, found)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _named(name: str, known: Mapping[str, PairSpec]) -> PairSpec:
    if name in known:
        return known[name]
    raise UsageError(unknown("pair", name, known))


def custom_pair(target: str, draft: str) -> PairSpec:
    """Return a pair of two models named by the user, each a Hugging Face id or a folder."""
    name = "+".join(model.rstrip("/").rsplit("/", 1)[-1] for model in (target, draft))
    return PairSpec(name, target, draft, description="named on the command line")


def with_draft(pair: PairSpec, draft: str) -> PairSpec:
    """Return a pair with another draft; no head fits it, and its name says so."""
    name = f"{pair.name}+{draft.rstrip('/').rsplit('/', 1)[-1]}"
    architecture = {role: values for role, values in pair.architecture.items() if role != "draft"}
    return replace(
        pair,
        name=name,
        draft=draft,
        draft_revision=None,
        heads=None,
        architecture=architecture,
    )


def _from_table(name: str, values: Mapping[str, Any], file: Path) -> PairSpec:
    """Make a pair of a checked table of a file."""
    places = {role: _beside(values[role], file.parent) for role in ("target", "draft")}
    heads = {"heads": Path(_beside(values["heads"], file.parent))} if "heads" in values else {}
    return PairSpec(name=name, file=file, **(dict(values) | places | heads))


def _beside(model: str, folder: Path) -> str:
    """Turn ``./model`` and ``../model`` into a path from ``folder``; leave a hub id as it is."""
    return str(folder / model) if model.startswith(("./", "../")) else model
