"""A worker in its own process: it loads a pair, keeps it, and decodes the samples it is given."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from specbench.errors import UsageError
from specbench.experiment.plan import Plan, SampleIndex

if TYPE_CHECKING:
    from specbench.experiment.runner import Loader, SampleRunner

Results = list[tuple[SampleIndex, dict[str, Any]]]


class NotStartedError(Exception):
    """The process is new: another one in its place was started, and died."""


class Worker:
    """Decodes samples on a device of its own; it keeps its pair from plan to plan.

    The folder and the environment's variables are those of the command: paths of heads and models
    begin there. Without a GPU given by Ray it keeps to one core.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], gpu: bool) -> None:
        os.environ.update(variables)
        self._folder = folder
        self._held: FileLock | None = None  # says that the core is taken
        self._device = self._take_device(gpu)
        self._loader: Loader | None = None
        self._work: tuple[Plan, SampleRunner] | None = None
        self._warnings: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self._warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("specbench").addHandler(handler)

    def start(self, plan: Plan) -> dict[str, Any]:
        """Load what a plan needs; return the device, models, engine and environment.

        Raises:
            UsageError: The pair or a head cannot be had here, or the folder is not there.
        """
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"{self._folder} is not there on {socket.gethostname()}: give the command in a "
                "folder that all machines share"
            ) from error
        runner = self._make_runner(plan)
        self._work = (plan, runner)
        return {
            "device": self._device,
            "models": runner.models,
            "engine": runner.engine,
            "environment": runner.opening_facts(),
            "warnings": self._take_warnings(),
        }

    def measure(self, indices: Sequence[SampleIndex]) -> tuple[Results, list[str]]:
        """Decode samples of one cell; return each with the columns of its record, and warnings."""
        if self._work is None:
            raise NotStartedError
        plan, runner = self._work
        steps = [plan.step(index) for index in indices]
        return [(step.place, found) for step, found in runner.run(steps)], self._take_warnings()

    def end(self) -> dict[str, Any]:
        """Return what is known only after all samples."""
        if self._work is None:
            raise NotStartedError
        return self._work[1].closing_facts()

    def _make_runner(self, plan: Plan) -> SampleRunner:
        from specbench.experiment.progress import quiet_libraries
        from specbench.experiment.runner import Loader, SampleRunner

        quiet_libraries(downloads=False)
        self._loader = self._loader or Loader()
        self._work = None  # what it holds would be in the way of another pair
        return SampleRunner(plan, self._loader.load(plan), self._device)

    def _take_device(self, gpu: bool) -> str:
        """Keep to a core that no other worker of this machine has; return the device's name.

        It must come before anything loads PyTorch, which starts its threads then.
        """
        name = socket.gethostname()
        if gpu:
            return f"{name} cuda:{os.environ['CUDA_VISIBLE_DEVICES']}"
        os.environ["OMP_NUM_THREADS"] = "1"
        if hasattr(os, "sched_setaffinity"):
            folder = Path(tempfile.gettempdir()) / f"specbench-cores-{os.getuid()}"
            folder.mkdir(exist_ok=True)
            for core in sorted(os.sched_getaffinity(0)):
                # The system releases the lock when the process ends in any way.
                with suppress(Timeout):
                    self._held = FileLock(folder / str(core))
                    self._held.acquire(blocking=False)
                    os.sched_setaffinity(0, {core})
                    return f"{name} cpu:{core}"
        return f"{name} cpu"

    def _take_warnings(self) -> list[str]:
        taken, self._warnings = self._warnings, []
        return taken
