"""Write files that survive a crash or a power loss, with clear errors, and refuse odd ones.

A run folder may come from anyone. Its files are data: they are read as they are, but a link that
leaves the folder, a device, and a file that unpacks to far more than it takes are refused before
anything is read or written.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BufferedReader, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from specbench.errors import RunError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk
OTHER_FOLDER = "choose another folder with --output"
PARTIAL = ".partial"  # suffix of unfinished files; a killed process may leave them
# How a file is opened, by the suffix of its packing.
PACKINGS: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SMALL = 2**28  # bytes; smaller files are not checked for their packing
PACKING = 200  # bytes of content per byte on disk; a packed run has 5 to 30
_CHUNK = 2**20  # bytes
_BLOCK = 512  # bytes, the unit of st_blocks


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, see ``replacing``.

    Raises:
        SpecbenchError: It cannot be written, see ``clear_errors``; an existing file is unchanged.
    """
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that replaces ``path`` when the context ends without an error.

    The file is synced before it gets its name, so a power loss leaves the old or the new one.

    Raises:
        SpecbenchError: It cannot be written, see ``clear_errors``; an existing file is unchanged.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with clear_errors(path):
        try:
            partial.unlink(missing_ok=True)  # it may be a link to another file
            with partial.open("xb") as file:
                yield file
            sync(partial)
            os.replace(partial, path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, would survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # raised by file systems that cannot sync a folder
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Sync a folder with everything in it; see ``sync``."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and sync their names; it may exist.

    Raises:
        UsageError: It cannot be made.
    """
    with clear_errors(folder):
        new = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync(path.parent)


def digits(number: float) -> str:
    """Format a number for tables on disk: 12 digits, unchanged by re-reading."""
    return f"{number:.12}"


def stored(path: Path) -> Path:
    """Return a file's path, or that of its packed copy if only this exists."""
    return next((file for file in copies(path) if os.path.isfile(file)), path)


def copies(path: Path) -> list[Path]:
    """Return the names that a file may have, plain or packed."""
    return [path.with_name(f"{path.name}{suffix}") for suffix in ("", *PACKINGS)]


def find_stored(folder: Path, name: str) -> list[Path]:
    """Return the files of this name in the folders below a folder, plain or packed."""
    return [file for path in copies(Path(name)) for file in folder.glob(f"*/{path}")]


def open_text(path: Path) -> TextIO:
    """Open a text file with its own line ends, plain or packed, without a byte order mark."""
    return TextIOWrapper(open_binary(path), encoding="utf-8-sig", newline="")


def require_plain(folder: Path) -> None:
    """Check that a folder contains only files and folders of its own, of plausible sizes.

    Raises:
        UsageError: An entry is a link out of the folder or no regular file, or is packed as
            densely as only a file made to fill the memory is.
    """
    if not os.path.isdir(folder):  # unlike ``Path.is_dir``, it never raises
        return
    inside = folder.resolve()
    for entry in os.scandir(folder):
        path, link = folder / entry.name, entry.is_symlink()
        try:
            outside = link and not path.resolve().is_relative_to(inside)
            is_folder, is_file = entry.is_dir(), entry.is_file()
        except (OSError, RuntimeError) as error:  # a link to itself
            raise UsageError(f"{path} leads nowhere: remove it") from error
        if outside:
            raise UsageError(f"{path} is a link out of its folder: put the file itself there")
        if is_folder:
            continue
        if not is_file:
            raise UsageError(f"{path} is not a regular file: remove it")
        facts = entry.stat()
        if facts.st_size > max(SMALL, PACKING * _BLOCK * facts.st_blocks):
            raise UsageError(f"{path} is a large file of holes: remove it")


def open_binary(path: Path) -> BinaryIO:
    """Open a file, plain or packed, as bytes.

    Reading raises ``UsageError`` where a packed file is damaged or unpacks to far more than its
    size.
    """
    if path.suffix in PACKINGS:
        return cast("BinaryIO", BufferedReader(_Unpacked(path), _CHUNK))
    return path.open("rb")


def packing(path: Path, file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    """Return a writer to an open file that packs as the suffix of ``path`` says."""
    return PACKINGS[path.suffix](file, "wb") if path.suffix in PACKINGS else nullcontext(file)


class _Unpacked(RawIOBase):
    """The content of a packed file, up to a multiple of its size."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, PACKINGS[path.suffix](path)
        self._left = max(SMALL, PACKING * path.stat().st_size)  # bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            size: int = self._file.readinto(buffer)
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            message = f"{self._path} is damaged ({error}): unpack or copy it again"
            raise UsageError(message) from error
        self._left -= size
        if self._left < 0:
            raise UsageError(f"{self._path} unpacks to far more than its size: remove it")
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def shown_path(path: str | Path) -> str:
    """Return a path relative to the working directory if it is below it, else unchanged."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def check_writable(folder: Path) -> None:
    """Raise ``UsageError`` if a folder, existing or not, is not writable."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return
    reason = "no permission" if nearest.is_dir() else "is a file"
    raise UsageError(f"cannot write {folder} ({nearest}: {reason}): {OTHER_FOLDER}")


def check_parent(path: Path) -> None:
    """Raise ``UsageError`` if a file cannot be written because of its folder."""
    with clear_errors(path):
        if not os.access(path.parent, os.W_OK):
            path.parent.stat()  # raises if there is no such folder
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def clear_errors(path: Path, advice: str = OTHER_FOLDER) -> Iterator[None]:
    """Turn an ``OSError`` about a file into a one-sentence error, which ends with ``advice``.

    Raises:
        RunError: The disk is full.
        UsageError: The file cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:
        kind = RunError if error.errno in FULL else UsageError
        advice = f"free disk space or {advice}" if kind is RunError else advice
        raise kind(f"cannot write {path} ({error.strerror or error}): {advice}") from error
