"""Files that are never half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.errors import RunError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        RunError: It cannot be written; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.partial")
    data = content.encode() if isinstance(content, str) else content
    with clear_errors(path):
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a file into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(cannot_write(path, error)) from error


def cannot_write(path: Path, error: OSError) -> str:
    """Say that a file or folder cannot be written, why, and what to do."""
    return (
        f"cannot write {path} ({error.strerror or error}): "
        "make room or choose another folder with --output"
    )
