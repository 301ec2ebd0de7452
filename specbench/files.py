"""Write files atomically, with clear errors."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from specbench.errors import RunError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk
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


def stored(path: Path) -> Path:
    """Return a file's path, or that of its gzipped copy if only this exists."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path


def find_stored(folder: Path, name: str) -> list[Path]:
    """Return the files of this name in the folders below a folder, plain or gzipped."""
    return [file for each in (name, f"{name}.gz") for file in folder.glob(f"*/{each}")]


def open_text(path: Path) -> TextIO:
    """Open a text file with its own line ends, plain or gzipped."""
    if path.suffix == ".gz":
        return TextIOWrapper(gzip.open(path), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def shown_path(path: str | Path) -> str:
    """Return a path relative to the working directory if it is below it, else unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def check_writable(folder: Path, option: str = "--output") -> None:
    """Raise ``UsageError`` if a folder, existing or not, is not writable; ``option`` sets it."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return
    reason = "no permission" if nearest.is_dir() else "is a file"
    raise UsageError(
        f"cannot write {folder} ({nearest}: {reason}): choose another folder with {option}"
    )


def check_parent(path: Path) -> None:
    """Raise ``UsageError`` if a file cannot be written because of its folder."""
    with clear_errors(path):
        if not os.access(path.parent, os.W_OK):
            path.parent.stat()  # raises if there is no such folder
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


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
        kind = RunError if error.errno in FULL else UsageError
        raise kind(cannot_write(path, error, advice)) from error


def cannot_write(path: Path, error: OSError, advice: str = OTHER_FOLDER) -> str:
    """Return a message that a file cannot be written, why, and what to do."""
    advice = f"free disk space or {advice}" if error.errno in FULL else advice
    return f"cannot write {path} ({error.strerror or error}): {advice}"
