"""Whether a process is writing a run at this moment, and how far it is."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

LOCK = ".lock"  # of the process that writes a folder; the operating system releases it


def still_running(folder: Path) -> str | None:
    """Describe a run that another process writes: ``still running, 21 of 180 samples``."""
    if not _is_locked(folder / LOCK):
        return None
    planned = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        planned = json.loads((folder / "config.json").read_bytes())["samples_planned"]
    samples = 0
    with suppress(OSError), (folder / "samples.jsonl").open("rb") as file:
        samples = sum(line.endswith(b"\n") for line in file)
    if not isinstance(planned, int):
        return f"still running, {samples:,} samples"
    return f"still running, {min(samples, planned):,} of {planned:,} samples"


def _is_locked(path: Path) -> bool:
    try:
        import fcntl  # not on Windows
    except ImportError:
        return False
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
