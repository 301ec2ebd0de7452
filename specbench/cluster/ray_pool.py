"""Workers that Ray starts: one per GPU where there are any, else one per core."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specbench.cluster.bench import Bench
from specbench.cluster.commands import run_command
from specbench.cluster.crew import Facts, WorkerLost
from specbench.cluster.schedule import Row
from specbench.engine.settings import AUTO, Loading
from specbench.errors import RunError, SpecbenchError, UsageError
from specbench.experiment.plan import Place, Plan
from specbench.masking import mask_tokens

OBJECT_STORE = 128 * 2**20  # bytes; what passes between processes is small
# Of the environment, these hold for workers on other machines too; a token is not passed on.
PASSED_ON = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
Work = Callable[[Path, Mapping[str, str]], Any]
_DETAIL = re.compile(r"exit detail: (.*?)(?: Some common causes|$)", re.DOTALL)


class Pool:
    """Ray, and the workers that it runs; leaving the context lets go of both.

    Workers stay from plan to plan, with the pair that they have loaded.

    Args:
        workers: How many.
        address: Of a cluster, ``auto`` or ``HOST:PORT``; None starts Ray on this machine.
        loading: Says whether GPUs are to be used.

    Raises:
        UsageError: Ray is not installed or cannot be reached, or has less than it takes.
    """

    def __init__(self, workers: int, address: str | None, loading: Loading) -> None:
        _require_free(loading)
        self._ray = _connect(address)
        try:
            self._gpus = _uses_gpus(self._ray.cluster_resources(), workers, loading)
        except UsageError:
            self._ray.shutdown()
            raise
        self.size = workers
        self._cores = _Cores()
        self._known: dict[int, _Actor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        for actor in self._known.values():
            actor.dismiss()
        self._ray.shutdown()

    def for_plan(self, plan: Plan) -> Callable[[int], RayWorker]:
        """Return what hires workers for a plan: those that are there, and new ones."""
        shared = self._ray.put(plan)

        def hire(number: int) -> RayWorker:
            if number not in self._known or self._known[number].gone:
                self._known[number] = _Actor(self._ray, Bench, self._gpus, self._cores)
            return RayWorker(self._known[number], shared)

        return hire

    def run(self, commands: Sequence[list[str]]) -> Iterator[tuple[int, int, str]]:
        """Run commands of specbench, each on a device of its own, as many at a time as workers.

        Yields:
            Number, exit code and last words of each command, as it ends.

        Raises:
            RunError: A machine was lost.
        """
        from ray.exceptions import RayError

        once = self._ray.remote(num_cpus=1, num_gpus=int(self._gpus), max_retries=0)(run_command)
        waiting = list(enumerate(commands))
        running: dict[Any, int] = {}
        while waiting or running:
            while waiting and len(running) < self.size:
                number, arguments = waiting.pop(0)
                running[once.remote(Path.cwd(), arguments)] = number
            ended, _ = self._ray.wait(list(running))
            for reference in ended:
                try:
                    code, said = self._ray.get(reference)
                except RayError as error:
                    raise RunError(f"a command was lost: {_why(str(error))}") from error
                yield running.pop(reference), code, said


class _Cores:
    """Who keeps to which core; workers start in threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[str, int], _Actor] = {}

    def claim(self, machine: str, cores: Sequence[int], actor: _Actor) -> int | None:
        """Return a core of a machine that nobody there keeps to; None where all are taken."""
        with self._lock:
            for core in cores:
                holder = self._of.get((machine, core))
                if holder is None or holder.gone:
                    self._of[machine, core] = actor
                    return core
        return None


class RayWorker:
    """A worker of a crew: a Ray actor with a plan.

    Args:
        actor: The actor.
        plan: A reference to the plan.
    """

    def __init__(self, actor: _Actor, plan: Any) -> None:
        self._actor, self._plan = actor, plan

    def start(self) -> Facts:
        """See ``crew.Worker``."""
        self._actor.settle()
        facts: Facts = self._actor.ask("start", self._plan)
        return facts

    def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
        """See ``crew.Worker``."""
        return self._actor.stream("measure", [batch.places for batch in row.batches])

    def end(self) -> Facts:
        """See ``crew.Worker``."""
        facts: Facts = self._actor.ask("end")
        return facts

    def dismiss(self) -> None:
        """See ``crew.Worker``."""
        self._actor.dismiss()


class _Actor:
    """A process of Ray's, on its own GPU or core.

    Attributes:
        machine: Its name, once the process is there.
        gone: Whether it has died or been dismissed.
    """

    def __init__(
        self,
        ray: Any,
        work: Work,
        gpu: bool,
        cores: _Cores,
    ) -> None:
        self._ray, self._gpu, self._cores = ray, gpu, cores
        self.machine: str | None = None
        self.gone = False
        remote = ray.remote(num_cpus=1, num_gpus=int(gpu), max_restarts=0, max_task_retries=0)
        self._handle = remote(work).remote(Path.cwd(), _variables())

    def settle(self) -> None:
        """Keep the process to a core that no other worker keeps to, where it has no GPU."""
        if self.machine is None:
            self.machine, cores = self.ask("cores")
            core = None if self._gpu else self._cores.claim(self.machine, cores, self)
            self.ask("keep_to", core, self._gpu)

    def ask(self, what: str, *values: Any) -> Any:
        """Call a method there and wait for what it returns."""
        with _understood(self):
            return self._ray.get(getattr(self._handle, what).remote(*values))

    def stream(self, what: str, *values: Any) -> Iterator[Any]:
        """Call a method there and yield what it yields."""
        with _understood(self):
            method = getattr(self._handle, what).options(num_returns="streaming")
            for reference in method.remote(*values):
                yield self._ray.get(reference)

    def dismiss(self) -> None:
        """End the process."""
        if not self.gone:
            self.gone = True
            self._ray.kill(self._handle)


@contextmanager
def _understood(actor: _Actor) -> Iterator[None]:
    """Turn what Ray raises into what a crew understands."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, SpecbenchError):
            raise type(error.cause)(str(error.cause)) from None
        said = mask_tokens(f"{type(error.cause).__name__}: {error.cause}")
        raise RunError(f"a worker on {actor.machine} failed: {said}") from error
    except RayError as error:
        actor.gone = True
        raise WorkerLost(f"{_why(str(error))} ({actor.machine})") from error


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def _why(said: str) -> str:
    """What Ray knows of the death of a process, in one line."""
    detail = _DETAIL.search(said)
    why = " ".join((detail[1] if detail else said).split())
    return f"its process died, killed or out of memory perhaps: {why}"


def _require_free(loading: Loading) -> None:
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
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "--workers needs Ray: install it with `pip install specbench[ray]`"
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


def _uses_gpus(resources: dict[str, float], workers: int, loading: Loading) -> bool:
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
