"""Workers that Ray starts: one per GPU where there are any, else one per core."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from specbench.cluster.bench import Bench
from specbench.cluster.commands import run_command
from specbench.cluster.crew import Facts
from specbench.cluster.ray_actor import Actor, Cores, why
from specbench.cluster.schedule import Row
from specbench.engine.settings import AUTO, Loading
from specbench.errors import RunError, UsageError
from specbench.experiment.plan import Place, Plan
from specbench.masking import mask_tokens
from specbench.pairs.registry import PairSpec

if TYPE_CHECKING:
    from specbench.heads.head import Head
    from specbench.training.parts import Decoded, Part

OBJECT_STORE = 128 * 2**20  # bytes; enough for samples. Where tensors pass, Ray decides


class Pool:
    """Ray, and the workers that it runs; leaving the context lets go of both.

    Workers stay from plan to plan, with the pair that they have loaded.

    Args:
        workers: How many.
        address: Of a cluster, ``auto`` or ``HOST:PORT``; None starts Ray on this machine.
        loading: Says whether GPUs are to be used.
        tensors: They send back more than small things.

    Attributes:
        size: How many workers.
        gpus: Whether they are on GPUs.

    Raises:
        UsageError: Ray is not installed or cannot be reached, or has less than it takes.
    """

    def __init__(
        self,
        workers: int,
        address: str | None,
        loading: Loading,
        tensors: bool = False,
    ) -> None:
        _require_free(loading)
        self._ray = _connect(address, None if tensors else OBJECT_STORE)
        try:
            self.gpus = _uses_gpus(self._ray.cluster_resources(), workers, loading)
        except UsageError:
            self._ray.shutdown()
            raise
        self.size = workers
        self._cores = Cores()
        self._known: dict[int, Actor] = {}

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
        return lambda number: RayWorker(self._actor(number), shared)

    def for_roll_outs(
        self, spec: PairSpec, loading: Loading, sizes: tuple[int, int, int]
    ) -> Callable[[int], RaySampler]:
        """Return what hires workers that sample roll-outs with a pair: known ones, and new ones.

        Args:
            spec: The pair.
            loading: How each of them loads it.
            sizes: What they must have memory for, see ``check_training_memory``.
        """
        known: dict[Actor, RaySampler] = {}

        def hire(number: int) -> RaySampler:
            actor = self._actor(number)
            return known.setdefault(actor, RaySampler(actor, spec, loading, sizes))

        return hire

    def _actor(self, number: int) -> Actor:
        """Return the process of that number, a new one where it is gone."""
        if number not in self._known or self._known[number].gone:
            self._known[number] = Actor(self._ray, Bench, self.gpus, self._cores)
        return self._known[number]

    def run(self, commands: Sequence[list[str]]) -> Iterator[tuple[int, int, str]]:
        """Run commands of specbench, each on a device of its own, as many at a time as workers.

        Yields:
            Number, exit code and last words of each command, as it ends.

        Raises:
            RunError: A machine was lost.
        """
        from ray.exceptions import RayError

        once = self._ray.remote(num_cpus=1, num_gpus=int(self.gpus), max_retries=0)(run_command)
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
                    raise RunError(f"a command was lost: {why(str(error))}") from error
                yield running.pop(reference), code, said


class RayWorker:
    """A worker of a crew: a Ray actor with a plan.

    Args:
        actor: The actor.
        plan: A reference to the plan.
    """

    def __init__(self, actor: Actor, plan: Any) -> None:
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


class RaySampler:
    """A worker that samples roll-outs, see ``together.Sampler``: a Ray actor with a pair.

    Args:
        actor: The actor.
        wanted: The pair, how to load it, and what there must be memory for.
    """

    def __init__(self, actor: Actor, *wanted: Any) -> None:
        self._actor, self._wanted = actor, wanted
        self._lock = threading.Lock()
        self._facts: Facts | None = None

    def start(self) -> Facts:
        """See ``together.Sampler``; several threads may ask while it loads."""
        with self._lock:
            if self._facts is None:
                self._actor.settle()
                self._facts = self._actor.ask("load", *self._wanted)
        return self._facts

    def roll_out(self, head: Head, part: Part) -> Decoded:
        """See ``together.Sampler``."""
        decoded: Decoded = self._actor.ask("roll_out", head, part)
        return decoded


def _require_free(loading: Loading) -> None:
    """Refuse a choice of devices that is for one process."""
    if loading.device not in (AUTO, "cpu", "cuda"):
        raise UsageError(
            f"--workers gives every worker a device, and --device {loading.device} names one: "
            "choose cpu or cuda, or leave it out"
        )
    if loading.device_map is not None:
        raise UsageError("--device-map spreads one pair over all GPUs: leave out --workers")


def _connect(address: str | None, store: int | None) -> Any:
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
    here: dict[str, Any] = {"include_dashboard": False, "object_store_memory": store}
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
