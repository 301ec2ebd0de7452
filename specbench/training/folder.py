"""What lies in the folder of a training; nothing here imports torch."""

from __future__ import annotations

import os
from pathlib import Path

from specbench.errors import UsageError
from specbench.heads.registry import is_head

CHECKPOINT = "checkpoint.pt"
LOG = "training.csv"


def check_folder(folder: Path, resume: bool) -> bool:
    """Tell whether there is anything to train in a folder.

    Returns:
        False where a training is to be resumed that had come to its end.

    Raises:
        UsageError: The folder holds a head or a checkpoint that a new training would overwrite, or
            cannot be written.
    """
    check_writable(folder, "--output")
    if is_head(folder):
        if resume:
            return False
        raise UsageError(f"{folder} holds a head already: name another folder with --output")
    if (folder / CHECKPOINT).exists() and not resume:
        raise UsageError(
            f"{folder} holds an unfinished training: go on with --resume, or name another folder "
            "with --output"
        )
    return True


def check_writable(folder: Path, option: str) -> None:
    """Refuse a folder, there or not, that could not be written; nothing is made yet.

    Args:
        folder: The folder.
        option: What names another one.

    Raises:
        UsageError: A file is in the way, or permission is missing.
    """
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return
    reason = "no permission" if nearest.is_dir() else "is a file"
    raise UsageError(
        f"cannot write {folder} ({nearest}: {reason}): name another folder with {option}"
    )
