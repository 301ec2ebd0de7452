"""The files in a training folder, without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.decoding.heads.registry import is_head
from specbench.errors import UsageError
from specbench.files import check_writable, clear_errors

if TYPE_CHECKING:
    from specbench.training.verifier import TrainingStep

CHECKPOINT = "checkpoint.pt"
_ADVICE = "choose another folder with --log-to"


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


def check_log(folder: Path) -> None:
    """Raise ``UsageError`` if the log is not writable or tensorboard is not installed."""
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--log-to needs tensorboard: pip install '.[tensorboard]' in specbench's folder, or "
            "leave it out; training.csv is written anyway"
        )
    check_writable(folder, "--log-to")


@contextmanager
def tensorboard(folder: Path | None) -> Iterator[Callable[[TrainingStep], None]]:
    """Write one scalar per column of ``training.csv``; yields a function of a step's progress.

    A resumed training reports its earlier steps again, so old events in the folder are purged.

    Raises:
        SpecbenchError: The folder cannot be written.
    """
    if folder is None:
        yield lambda progress: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with clear_errors(folder, _ADVICE):
        writer = SummaryWriter(str(folder), purge_step=1)

    def report(progress: TrainingStep) -> None:
        with clear_errors(folder, _ADVICE):
            for name, value in progress._asdict().items():
                if name != "step":
                    writer.add_scalar(name, value, progress.step)
            writer.flush()

    try:
        yield report
    finally:
        writer.close()
