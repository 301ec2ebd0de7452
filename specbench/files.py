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
        SpecbenchError: It cannot be written, see ``clear_errors``; what was there is untouched.
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
    """Return a number as tables on disk have it, with 12 digits, which re-reading preserves."""
    return f"{number:.12}"


@contextmanager
def clear_errors(path: Path, advice: str = OTHER_FOLDER) -> Iterator[None]:
    """Turn an error of the operating system about a file into one sentence.

    Args:
        path: The file or folder.
        advice: What the user may do.

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
    """Say that a file or folder cannot be written, why, and what to do."""
    return f"cannot write {path} ({error.strerror or error}): make room or {advice}"
