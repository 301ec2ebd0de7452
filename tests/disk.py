"""A disk that loses power: it records what a program syncs, and rebuilds what would be left.

A file keeps what was synced, and any part of what was written since, possibly as zeros. A folder
keeps the names that were synced; each later change of a name is kept or lost on its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

Contents = dict[int, bytes]  # of files, by inode
Names = dict[int, dict[str, int]]  # inodes in folders, by the folder's inode


@dataclass(frozen=True)
class Moment:
    """What is on disk for certain, what is in memory, and how many samples are called done."""

    synced: tuple[Contents, Names]
    written: tuple[Contents, Names]
    root: int
    done: int

    def rebuild(self, folder: Path, random: Random) -> None:
        """Write what may be left after a power loss at this moment to an empty folder."""
        self._rebuild(self.root, folder, random)

    def _rebuild(self, inode: int, folder: Path, random: Random) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        before, after = (names.get(inode, {}) for _, names in (self.synced, self.written))
        for name in sorted({*before, *after}):
            child = random.choice([before, after]).get(name)
            if child is None:
                continue
            if child in self.written[1] or child in self.synced[1]:
                self._rebuild(child, folder / name, random)
            else:
                (folder / name).write_bytes(self._left(child, random))

    def _left(self, inode: int, random: Random) -> bytes:
        synced = self.synced[0].get(inode, b"")
        written = self.written[0].get(inode, synced)
        if not written.startswith(synced):
            return random.choice([synced, written])
        more = written[len(synced) : random.randint(len(synced), len(written))]
        return synced + random.choice([more, bytes(len(more))])


@dataclass
class Recorder:
    """Records a moment before and after each sync and each replaced file below a folder."""

    root: Path
    done: int = 0  # samples; the program under test counts them
    moments: list[Moment] = field(default_factory=list)
    _synced: tuple[Contents, Names] = ({}, {})
    _open: dict[int, int] = field(default_factory=dict)  # handles, so that no inode is used twice

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record within the context; the programs of specbench sync with ``os.fsync`` only."""
        replace = os.replace

        def recorded_replace(source: Path, target: Path) -> None:
            self._record()
            replace(source, target)
            self._record()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._fsync)
            patch.setattr(os, "replace", recorded_replace)
            try:
                yield
                self._record()
            finally:
                for handle in self._open.values():
                    os.close(handle)

    def _fsync(self, handle: int) -> None:
        self._record()
        path, inode = Path(os.readlink(f"/proc/self/fd/{handle}")), os.fstat(handle).st_ino
        contents, names = self._synced
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            self._synced = (contents, names | {inode: _names(path)})
        else:
            self._synced = (contents | {inode: path.read_bytes()}, names)
        self._record()

    def _record(self) -> None:
        contents: Contents = {}
        names: Names = {}
        for folder in (self.root, *(path for path in self.root.rglob("*") if path.is_dir())):
            names[folder.stat().st_ino] = _names(folder)
        for path in self.root.rglob("*"):
            inode = path.stat().st_ino
            if inode not in self._open:
                self._open[inode] = os.open(path, os.O_RDONLY)
            if path.is_file():
                contents[inode] = path.read_bytes()
        root = self.root.stat().st_ino
        self.moments.append(Moment(self._synced, (contents, names), root, self.done))


def _names(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}
