"""Users' own prompt files in place of a task: JSONL, CSV or plain text, gzipped or not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from specbench.errors import UsageError
from specbench.example import Example
from specbench.tasks.rows import Row, plain_name, read_rows, require_utf8
from specbench.tasks.task import Task

MAX_NEW_TOKENS = 128  # the paper's limit
SUFFIXES = (".jsonl", ".csv", ".txt")


@dataclass(frozen=True)
class PromptList:
    """Test examples in the order of their file, and the file's entry in ``config.json``."""

    rows: tuple[Example, ...] = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    generator: ClassVar[None] = None

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return the first examples, or with a seed the first of a shuffled order."""
        if split != "test":
            raise UsageError("a list of prompts has no training split: choose a task with one")
        rows = list(self.rows)
        if seed:
            random.Random(seed).shuffle(rows)
        return rows[:limit]

    def provenance(self) -> dict[str, Any]:
        """Return the file's path, digest and number of rows."""
        return dict(self.facts)


def prompts_task(path: Path) -> Task:
    """Read a prompt file as a task without metrics; its version is a prefix of the file's digest.

    ``.jsonl`` and ``.csv`` need a ``prompt`` column and may have a ``reference``; in ``.txt`` every
    line is a prompt. Each may end in ``.gz``. Empty lines are skipped.

    Raises:
        UsageError: Unreadable or empty file, unknown format, or a bad line, as ``file:line: ...``.
    """
    file = read_rows(path, SUFFIXES, "prompt file", ["prompt"])
    stem = plain_name(path).stem
    rows = tuple(_example(row, f"{stem}-{row.where.rpartition(':')[2]}") for row in file.rows)
    return Task(
        name=stem,
        version=file.sha256[:12],
        description=f"Prompts from {path.name}",
        metrics=(),
        stop=(),
        max_new_tokens=MAX_NEW_TOKENS,
        source=PromptList(rows, {"file": str(path), "sha256": file.sha256, "rows": len(rows)}),
        path=path,
    )


def _example(row: Row, name: str) -> Example:
    prompt = _column(row, "prompt")
    if not prompt.strip():
        raise UsageError(f"{row.where}: the prompt is empty; fill it in or remove the line")
    return Example(name, prompt, _column(row, "reference") or None)


def _column(row: Row, name: str) -> str:
    value = row.columns.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        kind = type(value).__name__
        raise UsageError(f"{row.where}: `{name}` must be a string, not {kind}")
    return require_utf8(value, name, row.where)
