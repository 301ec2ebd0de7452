"""TensorBoard's event files of a training, where tensorboard is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UsageError
from specbench.files import clear_errors
from specbench.training.folder import check_writable

if TYPE_CHECKING:
    from specbench.training.verifier import Progress

_ADVICE = "choose another folder with --log-to"


def check_log(folder: Path) -> None:
    """Refuse a log that could not be written.

    Raises:
        UsageError: Tensorboard is not installed, or the folder cannot be written.
    """
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--log-to needs tensorboard: pip install '.[tensorboard]' in specbench's folder, or "
            "leave it out; training.csv is written anyway"
        )
    check_writable(folder, "--log-to")


@contextmanager
def tensorboard(folder: Path | None) -> Iterator[Callable[[Progress], None]]:
    """Write one scalar per column of ``training.csv`` while the context lasts.

    A training that goes on reports its earlier steps again, so what the folder held is dropped.

    Args:
        folder: Where to; None writes nothing.

    Yields:
        A function to call with every step's progress.

    Raises:
        SpecbenchError: The folder cannot be written.
    """
    if folder is None:
        yield lambda progress: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with clear_errors(folder, _ADVICE):
        writer = SummaryWriter(str(folder), purge_step=1)

    def report(progress: Progress) -> None:
        with clear_errors(folder, _ADVICE):
            for name, value in progress._asdict().items():
                if name != "step":
                    writer.add_scalar(name, value, progress.step)
            writer.flush()

    try:
        yield report
    finally:
        writer.close()
