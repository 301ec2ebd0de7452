"""TensorBoard's event files of a training, where tensorboard is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UsageError
from specbench.files import clear_errors

if TYPE_CHECKING:
    from specbench.training.verifier import Progress


def check_tensorboard() -> None:
    """Refuse to log where tensorboard is missing.

    Raises:
        UsageError: It is not installed.
    """
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--log-to needs tensorboard: pip install 'specbench[tensorboard]', or leave it out; "
            "training.csv is written anyway"
        )


@contextmanager
def tensorboard(folder: Path | None) -> Iterator[Callable[[Progress], None]]:
    """Write one scalar per column of ``training.csv`` while the context lasts.

    Args:
        folder: Where to; None writes nothing.

    Yields:
        A function to call with every step's progress.

    Raises:
        RunError: The folder cannot be written.
    """
    if folder is None:
        yield lambda progress: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with clear_errors(folder):
        writer = SummaryWriter(str(folder))
    try:
        yield lambda progress: _write(writer.add_scalar, progress)
    finally:
        writer.close()


def _write(add: Callable[[str, float, int], None], progress: Progress) -> None:
    for name, value in progress._asdict().items():
        if name != "step":
            add(name, value, progress.step)
