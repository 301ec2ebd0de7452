"""Workers that Ray runs and restarts: one per GPU where there are any, else one per core."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

from specbench.cluster.worker import NotStartedError, Worker
from specbench.config import AUTO, Loading
from specbench.errors import RunError, SpecbenchError, UsageError
from specbench.masking import mask_tokens

OBJECT_STORE = 128 * 2**20  # bytes; enough for samples
MOST_TRIES = 3  # of what workers die of
PATIENCE = 0.2  # seconds after which waiting for workers is interrupted for a moment
LAST_WORDS = 2000  # characters of a command's stderr that are kept
# Of the environment, these hold for workers on other machines too; a token is not passed on.
PASSED_ON = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_DETAIL = re.compile(r"exit detail: (.*?)(?: Some common causes|$)", re.DOTALL)


class WorkerLostError(Exception):
    """A worker died or cannot be reached; the message says what is known of why."""


class Pool:
    """Ray, and the workers that it runs; leaving the context lets go of both.

    Workers stay from plan to plan, with the pair that they have loaded. Ray restarts one that dies,
    on another machine if need be. An address is that of a cluster, ``auto`` or ``HOST:PORT``; None
    starts Ray on this machine.

    Raises:
        UsageError: Ray is not installed or cannot be reached, or has less than it takes.
    """

    def __init__(
        self, workers: int, address: str | None, loading: Loading, kind: type[Worker] = Worker
    ) -> None:
        _require_no_device(loading)
        self._ray = _connect(address)
        try:
            self._gpus = uses_gpus(self._ray.cluster_resources(), workers, loading)
        except UsageError:
            self._ray.shutdown()
            raise
        self.size = workers
        self._actor = self._ray.remote(
            num_cpus=1, num_gpus=int(self._gpus), max_restarts=-1, max_task_retries=MOST_TRIES - 1
        )(kind)
        self._actors: dict[int, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._actors):
            self.dismiss(number)
        self._ray.shutdown()

    def share(self, value: Any) -> Any:
        """Put a value where all workers find it; return what stands for it in ``ask``."""
        return self._ray.put(value)

    def ask(self, number: int, what: str, *values: Any, again: bool = True) -> Any:
        """Call a method of a worker, which is started where there is none.

        With ``again`` Ray repeats a call of which the worker dies, up to ``MOST_TRIES`` times.

        Returns:
            A reference to the answer, for ``wait`` and ``answer``.
        """
        if number not in self._actors:
            variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            self._actors[number] = self._actor.remote(Path.cwd(), variables, self._gpus)
        method = getattr(self._actors[number], what)
        return (method if again else method.options(max_task_retries=0)).remote(*values)

    def wait(self, references: Collection[Any]) -> list[Any]:
        """Return those of some references that have an answer, after a moment perhaps none."""
        ready: list[Any] = self._ray.wait(list(references), timeout=PATIENCE)[0]
        return ready

    def answer(self, reference: Any) -> Any:
        """Return what a worker answered.

        Raises:
            WorkerLostError: It died.
            SpecbenchError: It raised this or another error.
        """
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, SpecbenchError):
                raise type(error.cause)(str(error.cause)) from None
            if isinstance(error.cause, NotStartedError):
                raise WorkerLostError("its process died between two samples") from error
            said = mask_tokens(f"{type(error.cause).__name__}: {error.cause}")
            raise RunError(f"a worker failed: {said}") from error
        except RayError as error:
            raise WorkerLostError(_why(str(error))) from error

    def dismiss(self, number: int) -> None:
        """End a worker at once."""
        self._ray.kill(self._actors.pop(number))

    def run(self, commands: Sequence[list[str]]) -> Iterator[tuple[int, int, str]]:
        """Run commands of specbench, each on a device of its own, as many at a time as workers.

        Yields:
            Number, exit code and last words of each command, as it ends.

        Raises:
            RunError: A machine was lost.
        """
        from ray.exceptions import RayError

        once = self._ray.remote(num_cpus=1, num_gpus=int(self._gpus), max_retries=0)(run_command)
        waiting = enumerate(commands)
        running: dict[Any, int] = {}
        while True:
            for number, arguments in islice(waiting, self.size - len(running)):
                running[once.remote(Path.cwd(), arguments)] = number
            if not running:
                return
            for reference in self.wait(running):
                try:
                    code, said = self._ray.get(reference)
                except RayError as error:
                    raise RunError(f"a command was lost: {_why(str(error))}") from error
                yield running.pop(reference), code, said


def run_command(folder: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run ``specbench`` in a folder; return its exit code and its last line on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    said = done.stderr[-LAST_WORDS:].decode(errors="replace").strip()
    return done.returncode, said.splitlines()[-1] if said else ""


def run_here(commands: Sequence[list[str]]) -> Iterator[tuple[int, int, str]]:
    """Run commands one after the other in this process's folder, as ``Pool.run`` does."""
    for number, arguments in enumerate(commands):
        yield number, *run_command(Path.cwd(), arguments)


def uses_gpus(resources: dict[str, float], workers: int, loading: Loading) -> bool:
    """Tell whether workers take GPUs; refuse more workers than there is to take."""
    gpus, cores = (int(resources.get(name, 0)) for name in ("GPU", "CPU"))
    wanted = loading.device == "cuda" or (loading.device == AUTO and gpus > 0)
    there, what = (gpus, "GPUs") if wanted else (cores, "cores")
    if workers > there:
        raise UsageError(
            f"--workers {workers} is more than the {there} {what} that Ray has, and every worker "
            "takes one: give fewer workers, or a cluster with --ray-address"
        )
    return wanted


def _why(said: str) -> str:
    """What Ray knows of the death of a process, in one line."""
    detail = _DETAIL.search(said)
    why = " ".join((detail[1] if detail else said).split())
    return f"its process died, killed or out of memory perhaps: {why}"


def _require_no_device(loading: Loading) -> None:
    """Refuse a choice of devices that is for one process."""
    if loading.device not in (AUTO, "cpu", "cuda"):
        raise UsageError(
            f"--workers gives every worker a device, and --device {loading.device} names one: "
            "choose cpu or cuda, or leave it out"
        )
    if loading.device_map is not None:
        raise UsageError("--device-map spreads one pair over all GPUs: leave out --workers")


def _connect(address: str | None) -> Any:
    """Start Ray here, or join a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray gives its workers a lower priority, and their times would tell of who else is at work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "--workers needs Ray: pip install '.[ray]' in specbench's folder"
        ) from error
    here: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else here),
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = f"at --ray-address {address}" if address else "here"
        why = mask_tokens(str(error)).splitlines()[0]
        raise UsageError(
            f"no Ray {where} ({why}): start it with `ray start --head`, or leave out --ray-address"
        ) from error
    return ray
