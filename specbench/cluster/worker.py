"""A worker process: it loads a pair, keeps it, and decodes samples."""

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
    """The worker was restarted and has not loaded a plan."""


class Worker:
    """Decodes samples on its own device and keeps its pair across plans.

    ``folder`` and ``variables`` are the working directory and environment variables of the command;
    paths of heads and models are relative to the folder. Without a GPU the worker uses one core.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], gpu: bool) -> None:
        os.environ.update(variables)
        self._folder = folder
        self._held: FileLock | None = None  # marks the core as taken
        self._device = self._take_device(gpu)
        self._loader: Loader | None = None
        self._work: tuple[Plan, SampleRunner] | None = None
        self._warnings: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self._warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("specbench").addHandler(handler)

    def start(self, plan: Plan) -> dict[str, Any]:
        """Load a plan's pair; return the device, models, engine and environment.

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
        """Decode samples of one cell; return their indices, records and warnings."""
        if self._work is None:
            raise NotStartedError
        plan, runner = self._work
        steps = [plan.step(index) for index in indices]
        return [(step.place, result) for step, result in runner.run(steps)], self._take_warnings()

    def end(self) -> dict[str, Any]:
        """Return the facts that are known only after all samples."""
        if self._work is None:
            raise NotStartedError
        return self._work[1].closing_facts()

    def _make_runner(self, plan: Plan) -> SampleRunner:
        from specbench.experiment.progress import quiet_libraries
        from specbench.experiment.runner import Loader, SampleRunner

        quiet_libraries(downloads=False)
        self._loader = self._loader or Loader()
        self._work = None  # free its memory before loading another pair
        return SampleRunner(plan, self._loader.load(plan), self._device)

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
                    self._held = FileLock(folder / str(core))
                    self._held.acquire(blocking=False)
                    os.sched_setaffinity(0, {core})
                    return f"{name} cpu:{core}"
        return f"{name} cpu"

    def _take_warnings(self) -> list[str]:
        taken, self._warnings = self._warnings, []
        return taken
