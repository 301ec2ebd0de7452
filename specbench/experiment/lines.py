"""Files of a run that hold one JSON object a line, plain or packed by gzip."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.errors import UsageError


class Foreign(Exception):
    """A line that no run wrote; the message says what is wrong with it."""


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; a last one torn by a crash is passed over.

    Raises:
        UsageError: It cannot be read, or is half a gzip file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(
            f"{path} is no whole gzip file ({error}): unpack or copy it again"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check permissions") from error


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the object on one line.

    Raises:
        Foreign: There is none.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Foreign("it is not a line of JSON") from error
    if not isinstance(values, dict):
        raise Foreign("it is not an object")
    return values
