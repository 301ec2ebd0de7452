"""Write files atomically, with clear errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.errors import RunError, UsageError

OTHER_FOLDER = "choose another folder with --output"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        SpecbenchError: It cannot be written, see ``clear_errors``; an existing file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.partial")
    data = content.encode() if isinstance(content, str) else content
    with clear_errors(path):
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def digits(number: float) -> str:
    """Format a number for tables on disk: 12 digits, unchanged by re-reading."""
    return f"{number:.12}"


def shown_path(path: str | Path) -> str:
    """Return a path relative to the working directory if it is below it, else unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@contextmanager
def clear_errors(path: Path, advice: str = OTHER_FOLDER) -> Iterator[None]:
    """Turn an ``OSError`` about a file into a one-sentence error.

    Args:
        path: The file or folder.
        advice: What the user can do.

    Raises:
        RunError: The disk is full.
        UsageError: The file cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (RunError if full else UsageError)(cannot_write(path, error, advice)) from error


def cannot_write(path: Path, error: OSError, advice: str = OTHER_FOLDER) -> str:
    """Return a message that a file cannot be written, why, and what to do."""
    return f"cannot write {path} ({error.strerror or error}): free disk space or {advice}"
