"""A worker process of Ray."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.errors import UsageError
from specbench.experiment.execute import Worker
from specbench.experiment.plan import Plan, SampleIndex


class RayWorker(Worker):
    """Decodes samples on its own device, and collects its warnings.

    ``folder`` and ``variables`` are the working directory and environment variables of the command;
    paths of heads and models are relative to the folder. Without a GPU the worker uses one core.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], gpu: bool) -> None:
        super().__init__()
        os.environ.update(variables)
        self._folder = folder
        self._core: FileLock | None = None  # marks the core as taken
        self.device = self._take_device(gpu)
        self._warnings: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self._warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("specbench").addHandler(handler)

    def call(self, request: str, *values: Any) -> tuple[Any, list[str]]:
        """Call a method; return its result and the warnings since the last call."""
        result = getattr(self, request)(*values)
        warnings, self._warnings = self._warnings, []
        return result, warnings

    def start(self, plan: Plan) -> dict[str, Any]:
        """Load a plan's pair, see ``Worker.start``.

        Raises:
            UsageError: The pair or a head cannot be loaded, or the folder does not exist here.
        """
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"{self._folder} does not exist on {socket.gethostname()}: run the command in a "
                "folder that all machines share"
            ) from error
        return super().start(plan)

    def measure(self, indices: Sequence[SampleIndex]) -> list[tuple[SampleIndex, Any]]:
        """Decode samples of one cell; return the index and record of each."""
        return list(super().measure(indices))

    def _take_device(self, gpu: bool) -> str:
        """Bind to a core that no other worker on this machine uses; return the device's name.

        Call this before importing PyTorch, which starts its threads on import.
        """
        name = socket.gethostname()
        if gpu:
            return f"{name} cuda:{os.environ['CUDA_VISIBLE_DEVICES']}"
        os.environ["OMP_NUM_THREADS"] = "1"
        if hasattr(os, "sched_setaffinity"):
            folder = Path(tempfile.gettempdir()) / f"specbench-cores-{os.getuid()}"
            folder.mkdir(exist_ok=True)
            for core in sorted(os.sched_getaffinity(0)):
                # The operating system releases the lock when the process ends.
                with suppress(Timeout):
                    self._core = FileLock(folder / str(core))
                    self._core.acquire(blocking=False)
                    os.sched_setaffinity(0, {core})
                    return f"{name} cpu:{core}"
        return f"{name} cpu"
