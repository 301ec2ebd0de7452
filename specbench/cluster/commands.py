"""Commands of specbench in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LAST = 2000  # characters of what a command said that are kept


def run_command(folder: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run ``specbench`` in a folder; return its exit code and its last line on stderr."""
    command = [sys.executable, "-m", "specbench", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    said = done.stderr[-LAST:].decode(errors="replace").strip()
    return done.returncode, said.splitlines()[-1] if said else ""


def run_here(commands: Sequence[list[str]]) -> Iterator[tuple[int, int, str]]:
    """Run commands one after the other; yield the number, exit code and last words of each."""
    for number, arguments in enumerate(commands):
        yield number, *run_command(Path.cwd(), arguments)
