"""What a worker does in its own process: load a pair, keep it, and decode what it is asked to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.experiment.plan import Place, Plan
from specbench.pairs.registry import PairSpec

if TYPE_CHECKING:
    from specbench.engine.loading import LoadedPair
    from specbench.experiment.execute import Loader, Workbench
    from specbench.heads.head import Head
    from specbench.training.parts import Decoded, Part


class Bench:
    """One worker; it keeps its pair from plan to plan, and from one set of roll-outs to the next.

    Args:
        folder: Where the command was given: paths of heads and models begin there.
        variables: Of the environment, as that command has them.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        os.environ.update(variables)
        self._folder = folder
        self._loader: Loader | None = None
        self._work: tuple[Plan, Workbench] | None = None
        self._pair: LoadedPair | None = None
        self._notes: list[str] = []
        self._device: str | None = None

    def cores(self) -> tuple[str, list[int]]:
        """Return the machine's name and the cores that this process may use."""
        return socket.gethostname(), sorted(_allowed())

    def keep_to(self, core: int | None, gpu: bool) -> None:
        """Keep to one core, or to the GPU that this process has been given.

        It must come before anything loads PyTorch, which starts its threads then.
        """
        name = socket.gethostname()
        if gpu:
            self._device = f"{name} cuda:{os.environ['CUDA_VISIBLE_DEVICES']}"
            return
        os.environ["OMP_NUM_THREADS"] = "1"
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})
        self._device = f"{name} cpu" + ("" if core is None else f":{core}")

    def start(self, plan: Plan) -> dict[str, Any]:
        """Load what a plan needs; return the models, the engine and the environment.

        Raises:
            UsageError: The pair or a head cannot be had here, or the folder is not there.
        """
        self._enter()
        from specbench.experiment.execute import Loader, Workbench

        self._loader = self._loader or Loader()
        self._work = None  # what it holds would be in the way of another pair
        pair = self._loader.load(plan, self._notes.append)
        work = Workbench(plan, pair, self._notes.append, self._device)
        self._work = (plan, work)
        return {
            "device": self._device,
            "models": work.models,
            "engine": work.engine,
            "environment": work.environment,
        }

    def load(self, spec: PairSpec, loading: Loading, sizes: tuple[int, int, int]) -> dict[str, Any]:
        """Load a pair to sample roll-outs with; return the models and the device.

        Args:
            spec: The pair.
            loading: How to load it.
            sizes: What there must be memory for, see ``check_training_memory``.

        Raises:
            UsageError: The pair cannot be had here or does not fit, or the folder is not there.
        """
        self._enter()
        from specbench.engine.loading import load_pair
        from specbench.engine.memory import check_training_memory
        from specbench.heads.files import fingerprints

        check_training_memory(spec, loading, *sizes)
        self._pair = load_pair(spec, loading)
        return {"device": self._device, "models": fingerprints(self._pair)}

    def roll_out(self, head: Head, part: Part) -> Decoded:
        """Sample the texts of a part of a set of roll-outs; tensors come back on the CPU."""
        from specbench.training.parts import decode

        assert self._pair is not None
        decoded = decode(self._pair, head.to(self._pair.target.device), part)
        return decoded._replace(rollouts=decoded.rollouts.cpu())

    def measure(self, batches: Sequence[Sequence[Place]]) -> Iterator[tuple[Place | None, Any]]:
        """Decode batches of places; yield each place with its measurements, and notes between."""
        assert self._work is not None
        plan, work = self._work
        for places in batches:
            for step, found in work.measure([plan.step(place) for place in places]):
                while self._notes:
                    yield None, self._notes.pop()
                yield step.place, found

    def end(self) -> dict[str, Any]:
        """Return what is known only after all samples."""
        assert self._work is not None
        _, work = self._work
        return {"engine": work.engine, **work.afterwards()}

    def _enter(self) -> None:
        """Go where the command was given, before a library of models is loaded.

        Raises:
            UsageError: The folder is not there.
        """
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise UsageError(
                f"{self._folder} is not there on {socket.gethostname()}: give the command in a "
                "folder that all machines share"
            ) from error
        from specbench.experiment.progress import quiet_libraries

        quiet_libraries(downloads=False)


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
