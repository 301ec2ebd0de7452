"""The files in a training folder, without importing torch."""

from __future__ import annotations

from pathlib import Path

from specbench.decoding.heads.registry import is_head
from specbench.errors import UsageError
from specbench.files import check_writable

CHECKPOINT = "checkpoint.pt"


def check_folder(folder: Path, resume: bool) -> bool:
    """Return whether training is needed: False if ``resume`` finds a finished head.

    Raises:
        UsageError: Training would overwrite a head or checkpoint, or the folder is not writable.
    """
    check_writable(folder)
    if is_head(folder):
        if resume:
            return False
        raise UsageError(f"{folder} already contains a head: choose another folder with --output")
    if (folder / CHECKPOINT).exists() and not resume:
        raise UsageError(
            f"{folder} contains an unfinished training: add --resume, or choose another folder "
            "with --output"
        )
    return True
