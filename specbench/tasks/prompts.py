"""Prompt files of a user: JSONL, CSV or plain text, gzipped or not, used in the place of a task."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.task import Task

MAX_NEW_TOKENS = 128  # the paper's limit

Row = tuple[int, Mapping[str, object]]  # number of the line it starts on, and its columns


def prompts_task(path: Path) -> Task:
    """Read a prompt file as a task.

    ``.jsonl`` and ``.csv`` need a ``prompt`` column and may have a ``reference``; of ``.txt`` every
    line is a prompt. Each may end in ``.gz``. Empty lines are skipped. There are no metrics; a
    caller who wants the references scored sets some with ``dataclasses.replace``. The
    version is a hash of the content.

    Raises:
        UsageError: Unreadable or empty file, unknown format, or a bad line, as ``file:line: ...``.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    reader = _READERS.get(plain.suffix)
    if reader is None:
        raise UsageError(f"{path}: a prompt file ends in .jsonl, .csv or .txt (or one of them .gz)")
    content = _content(path)
    rows = tuple(
        _example(columns, f"{plain.stem}-{line}", f"{path}:{line}")
        for line, columns in reader(_text(content, path), path)
    )
    if not rows:
        raise UsageError(f"{path}:1: no prompts in this file; add at least one")
    return Task(
        name=plain.stem,
        version=hashlib.sha256(content).hexdigest()[:12],
        description=f"Prompts from {path.name}",
        metrics=(),
        stop=(),
        max_new_tokens=MAX_NEW_TOKENS,
        generator=None,
        path=path,
        rows=rows,
    )


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: not a complete gzip file; write it again") from error
    except OSError as error:
        raise UsageError(f"cannot read the prompt file {path}: {error.strerror}") from error


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines: U+2028 and its like are ordinary characters inside a prompt.
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.strip():
            yield number, line.rstrip("\n")


def _plain(text: str, path: Path) -> Iterator[Row]:
    for number, line in _lines(text):
        yield number, {"prompt": line}


def _jsonl(text: str, path: Path) -> Iterator[Row]:
    for number, line in _lines(text):
        try:
            columns = json.loads(line)
        except json.JSONDecodeError as error:
            what = f"not valid JSON: {error.msg} at column {error.colno}"
            raise UsageError(f"{path}:{number}: {what}") from error
        except RecursionError as error:
            raise UsageError(f"{path}:{number}: not valid JSON: nested too deeply") from error
        if not isinstance(columns, dict):
            raise UsageError(f'{path}:{number}: expected a JSON object such as {{"prompt": "..."}}')
        yield number, columns


def _csv(text: str, path: Path) -> Iterator[Row]:
    records = _records(text, path)
    line, header = next(records, (1, ["prompt"]))
    _require_prompt(header, f"{path}:{line}")
    for line, fields in records:
        if len(fields) > len(header):
            raise UsageError(f"{path}:{line}: more fields than columns; quote those with commas")
        yield line, dict(zip_longest(header, fields, fillvalue=""))


def _records(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    end = 0  # a quoted field may span several lines, so the line a record starts on is counted here
    try:
        for fields in reader:
            start, end = end + 1, reader.line_num
            if fields:
                yield start, fields
    except csv.Error as error:
        raise UsageError(f"{path}:{end + 1}: not valid CSV: {error}") from error


_READERS = {".jsonl": _jsonl, ".csv": _csv, ".txt": _plain}


def _require_prompt(columns: Collection[str], where: str) -> None:
    if "prompt" not in columns:
        found = ", ".join(f"`{name}`" for name in columns) or "none"
        raise UsageError(
            f"{where}: no `prompt` column; columns found: {found};"
            " rename the one that holds the prompts to `prompt`"
        )


def _example(columns: Mapping[str, object], name: str, where: str) -> Example:
    _require_prompt(columns, where)
    prompt = _column(columns, "prompt", where)
    if not prompt.strip():
        raise UsageError(f"{where}: the prompt is empty; fill it in or remove the line")
    return Example(name, prompt, _column(columns, "reference", where) or None)


def _column(columns: Mapping[str, object], name: str, where: str) -> str:
    value = columns.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{where}: `{name}` must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: `{name}` has half a surrogate pair; mend its escape") from error
    return value
