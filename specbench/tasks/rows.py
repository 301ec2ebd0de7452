"""Rows of a JSON, JSONL, CSV, plain text or Parquet file, plain or packed, with their locations."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from specbench.errors import UsageError, first_line, listed, require, shown
from specbench.files import PACKINGS, open_binary

_INDICES = re.compile(r"(\.\d+)+$")  # of entries of a list


class Row(NamedTuple):
    """One row of a dataset: its location for messages (``file:line``), and values by column."""

    location: str
    columns: Mapping[str, object]


class DataFile(NamedTuple):
    """The content of a file, with the digest of its uncompressed bytes."""

    path: Path
    sha256: str
    rows: tuple[Row, ...]


def read_rows(
    path: Path, suffixes: Collection[str], noun: str, needed: Collection[str]
) -> DataFile:
    """Read a file in the format of its suffix (before that of a packing); empty lines are skipped.

    In plain text, every line is a row with the single column ``prompt``. Messages call the file
    ``noun``. Every row must have the ``needed`` columns; a dotted name may be a nested column.
    """
    suffix = plain_name(path).suffix
    if suffix not in suffixes:
        endings = f"{', '.join(list(suffixes)[:-1])} or {list(suffixes)[-1]}"
        raise UsageError(
            f"{path}: a {noun} must end in {endings}, plain or packed ({', '.join(PACKINGS)})"
        )
    try:
        with open_binary(path) as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"cannot read the {noun} {path}: {error.strerror}") from error
    rows = tuple(READERS[suffix](content, path, needed))
    require(bool(rows), f"{path}:1: no rows in this {noun}; add at least one")
    return DataFile(path, hashlib.sha256(content).hexdigest(), rows)


def plain_name(path: Path) -> Path:
    """Return the path without the suffix of a packing."""
    return path.with_suffix("") if path.suffix in PACKINGS else path


def value_of(columns: Mapping[str, object], name: str) -> object:
    """Return a column's value; ``translation.de`` is a column or an entry of ``translation``.

    Entries of a list are numbered from 0: ``turns.0``.
    """
    if name in columns:
        return columns[name]
    outer, dot, inner = name.partition(".")
    nested = list_in(columns.get(outer))
    if isinstance(nested, list):
        nested = {str(number): entry for number, entry in enumerate(nested)}
    if not dot or not isinstance(nested, Mapping):
        raise KeyError(name)
    return value_of(nested, inner)


def list_in(value: object) -> object:
    """Return the list of texts if a text is one as JSON, as in CSV files, else the value."""
    if not isinstance(value, str) or not value.startswith('["'):
        return value
    try:
        texts = json.loads(value)
    except (ValueError, RecursionError):
        return value
    is_texts = isinstance(texts, list) and all(isinstance(entry, str) for entry in texts)
    return texts if is_texts else value


def require_columns(columns: Mapping[str, object], needed: Collection[str], where: str) -> None:
    """Raise ``UsageError`` if a row or a header lacks one of the needed columns."""
    for name in needed:
        try:
            value_of(columns, name)
        except KeyError as error:
            outer, _, index = name.rpartition(".")
            if index.isdigit() and outer in columns:
                raise UsageError(
                    f"{where}: `{shown(outer)}` has no entry {index}, counted from 0; use another"
                ) from error
            raise UsageError(
                f"{where}: no `{shown(name)}` column; columns found: {listed(columns) or 'none'}; "
                f"rename the right one to `{shown(name)}`"
            ) from error


def require_utf8(text: str, name: str, where: str) -> str:
    """Return a column's text; raise ``UsageError`` if it cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: `{name}` has half a surrogate pair; fix its escape") from error
    return text


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from error


def _lines(content: bytes, path: Path) -> Iterator[tuple[str, str]]:
    # Not splitlines, since U+2028 and similar characters may occur inside a prompt.
    for number, line in enumerate(io.StringIO(_text(content, path), newline=None), 1):
        if line.strip():
            yield f"{path}:{number}", line.rstrip("\n")


def _plain(content: bytes, path: Path, needed: Collection[str]) -> Iterator[Row]:
    for location, line in _lines(content, path):
        yield Row(location, {"prompt": line})


def _values(content: bytes, path: Path) -> Iterator[tuple[str, object]]:
    """Yield the values of JSONL, of one list, or of one object in several lines."""
    text = _text(content, path)
    if text.lstrip().startswith("["):
        values = _parsed(text, path)
        for number, value in enumerate(values if isinstance(values, list) else (), 1):
            yield f"{path}: entry {number}", value
    elif text.strip().partition("\n")[0].rstrip() == "{":
        yield f"{path}:1", _parsed(text, path)
    else:
        for location, line in _lines(content, path):
            yield location, _parsed(line, path, int(location.rpartition(":")[2]))


class WrittenFloat(float):
    """A number that is written as in its file, since it may be a name: 1e5, 12.0."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def _parsed(text: str, path: Path, line: int = 1) -> object:
    """Return the value of a text that begins in this line of a file."""
    try:
        return json.loads(text, parse_float=WrittenFloat)
    except json.JSONDecodeError as error:
        # Some messages already end in "at".
        problem = f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        raise UsageError(f"{path}:{line + error.lineno - 1}: {problem}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise UsageError(f"{path}:{line}: not valid JSON: a number is too long") from error
    except RecursionError as error:
        raise UsageError(f"{path}:{line}: not valid JSON: nested too deeply") from error


def _jsonl(content: bytes, path: Path, needed: Collection[str]) -> Iterator[Row]:
    for location, columns in _values(content, path):
        if not isinstance(columns, dict):
            example = ", ".join(f'"{name}": "..."' for name in needed or ["prompt"])
            raise UsageError(f"{location}: expected a JSON object such as {{{example}}}")
        require_columns(columns, needed, location)
        yield Row(location, columns)


def _csv(content: bytes, path: Path, needed: Collection[str]) -> Iterator[Row]:
    records = _records(_text(content, path), path)
    location, header = next(records, (f"{path}:1", list(needed)))
    if twice := next((name for name in header if name and header.count(name) > 1), None):
        raise UsageError(f"{location}: two columns are named `{shown(twice)}`: rename one")
    if len(header) == 1 and (mark := next((m for m in ";\t|" if m in header[0]), "")):
        separator = {"\t": "tabs", ";": "semicolons"}.get(mark, f"`{mark}`")
        raise UsageError(f"{location}: columns apart by {separator}: save the file with commas")
    names = [name if name in header else _INDICES.sub("", name) for name in needed]
    require_columns(dict.fromkeys(header), names, location)
    for location, fields in records:
        if len(fields) > len(header):
            raise UsageError(f"{location}: more fields than columns; quote those with commas")
        columns = dict(zip_longest(header, fields, fillvalue=""))
        require_columns(columns, needed, location)
        yield Row(location, columns)


def _records(text: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    # The default limit is 128 KiB, less than some articles; no field is longer than its file.
    limit = csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    end = 0  # a quoted field may span several lines, so this tracks where each record starts
    try:
        for fields in reader:
            start, end = end + 1, reader.line_num
            if fields:
                yield f"{path}:{start}", fields
    except csv.Error as error:
        raise UsageError(f"{path}:{end + 1}: not valid CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _parquet(content: bytes, path: Path, needed: Collection[str]) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    try:
        table = read_table(io.BytesIO(content))
        rows = table.to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise UsageError(
            f"{path}: not a complete Parquet file ({first_line(error)}); write it again"
        ) from error
    for number, columns in enumerate(rows, 1):
        location = f"{path}: row {number}"
        require_columns(columns, needed, location)
        yield Row(location, columns)


READERS = {".jsonl": _jsonl, ".json": _jsonl, ".csv": _csv, ".txt": _plain, ".parquet": _parquet}
