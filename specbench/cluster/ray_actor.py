"""A process that Ray runs, on a device that it has for itself."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specbench.cluster.crew import WorkerLost
from specbench.errors import RunError, SpecbenchError
from specbench.masking import mask_tokens

# Of the environment, these hold for workers on other machines too; a token is not passed on.
PASSED_ON = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
Work = Callable[[Path, Mapping[str, str]], Any]
_DETAIL = re.compile(r"exit detail: (.*?)(?: Some common causes|$)", re.DOTALL)


class Cores:
    """Who keeps to which core; workers start in threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[str, int], Actor] = {}

    def claim(self, machine: str, cores: Sequence[int], actor: Actor) -> int | None:
        """Return a core of a machine that nobody there keeps to; None where all are taken."""
        with self._lock:
            for core in cores:
                holder = self._of.get((machine, core))
                if holder is None or holder.gone:
                    self._of[machine, core] = actor
                    return core
        return None


class Actor:
    """A process of Ray's, on its own GPU or core.

    Args:
        ray: Ray.
        work: Made there from the folder of the command and its environment.
        gpu: Whether it takes a GPU.
        cores: Who keeps to which core.

    Attributes:
        machine: Its name, once the process is there.
        gone: Whether it has died or been dismissed.
    """

    def __init__(
        self,
        ray: Any,
        work: Work,
        gpu: bool,
        cores: Cores,
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
def _understood(actor: Actor) -> Iterator[None]:
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
        raise WorkerLost(f"{why(str(error))} ({actor.machine})") from error


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def why(said: str) -> str:
    """Return what Ray knows of the death of a process, in one line."""
    detail = _DETAIL.search(said)
    why = " ".join((detail[1] if detail else said).split())
    return f"its process died, killed or out of memory perhaps: {why}"
