"""Ray workers: one per GPU if there are any, else one per core."""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.config import AUTO
from specbench.engine.pairs import Loading
from specbench.errors import RunError, SpecbenchError, UsageError, mask_tokens
from specbench.experiment.execute import MOST_TRIES
from specbench.experiment.plan import Plan, SampleIndex
from specbench.experiment.workers import NotStartedError, Pool, Worker, WorkerLostError

OBJECT_STORE = 128 * 2**20  # bytes; enough for samples
POLL_SECONDS = 0.2  # maximum time of one wait for results
# Environment variables for workers, also on other machines; tokens are not forwarded.
FORWARDED = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
log = logging.getLogger(__name__)
_DETAIL = re.compile(r"exit detail: (.*?)(?: Some common causes|$)", re.DOTALL)


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
        """Load a plan's pair, see ``Worker.start``."""
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


class RayPool(Pool, AbstractContextManager["RayPool"]):
    """A Ray connection and its workers; leaving the context shuts both down.

    Workers keep their loaded pair across plans. Ray restarts a worker that dies, possibly on
    another machine. ``address`` is that of a cluster (``auto`` or ``HOST:PORT``); None starts Ray
    on this machine.
    """

    separate = True

    def __init__(
        self, workers: int, address: str | None, loading: Loading, kind: type[RayWorker] = RayWorker
    ) -> None:
        if loading.device not in (AUTO, "cpu", "cuda"):
            raise UsageError(
                f"--workers assigns devices to workers, but --device {loading.device} names one: "
                "use cpu or cuda, or omit it"
            )
        if loading.device_map is not None:
            raise UsageError("--device-map spreads one pair over all GPUs: omit --workers")
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

    def __exit__(self, *_: object) -> None:
        for number in list(self._actors):
            self.dismiss(number)
        self._ray.shutdown()

    def share(self, plan: Plan) -> Any:
        """Put a plan into Ray's object store; return a reference for ``ask``."""
        return self._ray.put(plan)

    def ask(self, number: int, request: str, *values: Any, retry: bool = True) -> Any:
        """Call a method of a worker, and start the worker if necessary.

        With ``retry``, Ray retries a call during which the worker dies, up to ``MOST_TRIES`` times.
        """
        if number not in self._actors:
            variables = {name: os.environ[name] for name in FORWARDED if name in os.environ}
            self._actors[number] = self._actor.remote(Path.cwd(), variables, self._gpus)
        options = {} if retry else {"max_task_retries": 0}
        call = self._actors[number].call.options(name=f"Worker.{request}", **options)
        return call.remote(request, *values)

    def wait(self, references: Collection[Any]) -> list[Any]:
        """Return the references whose results are available, see ``Pool.wait``."""
        return list(self._ray.wait(list(references), timeout=POLL_SECONDS)[0])

    def answer(self, reference: Any) -> Any:
        """Return the result of a call, and log the worker's warnings; see ``Pool.answer``."""
        from ray.exceptions import RayError, RayTaskError

        try:
            result, warnings = self._ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, SpecbenchError):
                raise type(error.cause)(str(error.cause)) from None
            if isinstance(error.cause, NotStartedError):
                raise WorkerLostError("its process died between two samples") from error
            message = mask_tokens(f"{type(error.cause).__name__}: {error.cause}")
            raise RunError(f"a worker failed: {message}") from error
        except RayError as error:
            detail = _DETAIL.search(message := str(error))
            why = " ".join((detail[1] if detail else message).split())
            reason = f"its process died, possibly killed or out of memory: {why}"
            raise WorkerLostError(reason) from error
        for text in warnings:
            log.warning(text)
        return result

    def dismiss(self, number: int) -> None:
        """Kill a worker."""
        self._ray.kill(self._actors.pop(number))


def uses_gpus(resources: dict[str, float], workers: int, loading: Loading) -> bool:
    """Return whether workers use GPUs; refuse more workers than GPUs or cores."""
    gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    needs_gpu = loading.device == "cuda" or (loading.device == AUTO and gpus > 0)
    available, unit = (gpus, "GPUs") if needs_gpu else (cores, "cores")
    if workers > available:
        raise UsageError(
            f"--workers {workers} exceeds the {available} {unit} of Ray, and every worker needs "
            "one: use fewer workers, or a cluster with --ray-address"
        )
    return needs_gpu


def _connect(address: str | None) -> Any:
    """Start Ray on this machine, or join a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray lowers the priority of its workers, which would make times depend on other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    local: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else local),
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        location = f"at --ray-address {address}" if address else "on this machine"
        why = mask_tokens(str(error)).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(
            f"no Ray {location} ({why}): start it with `ray start --head`, or omit --ray-address"
        ) from error
    return ray
