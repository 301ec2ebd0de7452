"""Prompt files of a user: JSONL, CSV or plain text, gzipped or not, used in the place of a task."""

from __future__ import annotations

from pathlib import Path

from specbench.errors import UsageError
from specbench.example import Example
from specbench.tasks.rows import Row, plain_name, read_rows, require_utf8
from specbench.tasks.task import Listed, Task

MAX_NEW_TOKENS = 128  # the paper's limit
SUFFIXES = (".jsonl", ".csv", ".txt")


def prompts_task(path: Path) -> Task:
    """Read a prompt file as a task.

    ``.jsonl`` and ``.csv`` need a ``prompt`` column and may have a ``reference``; of ``.txt`` every
    line is a prompt. Each may end in ``.gz``. Empty lines are skipped. There are no metrics; a
    caller who wants the references scored sets some with ``dataclasses.replace``. The version is
    the beginning of the content's digest.

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
        source=Listed(rows, {"file": str(path), "sha256": file.sha256, "rows": len(rows)}),
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
