"""Measure the scheduling overhead for many samples of one simulated second each.

    python -m tests.benchmarks.cluster_overhead [--samples 10000] [--workers 64] [--seconds 1]

Ray workers wait instead of decoding; everything else is as in a run. The overhead is the time per
sample beyond the waiting time, measured from the moment when all workers are busy.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench.cluster import ray_pool
from specbench.cluster.worker import RayWorker
from specbench.config import Loading, Settings
from specbench.example import Example
from specbench.experiment import store
from specbench.experiment.execute import execute
from specbench.experiment.plan import Plan, Step, build_plan
from specbench.experiment.progress import Display
from specbench.experiment.variants import method_variants
from specbench.pairs.registry import PairSpec
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Task

TASKS = 4
RECORD: dict[str, Any] = {
    "device": "simulated", "status": "ok", "output_tokens": 128, "text": "word " * 128,
    "token_ids": list(range(128)),
    "per_round": {name: [0.1234] * 40 for name in ("proposed", "accepted", "emitted", "expected")},
}  # fmt: skip


class Runner:
    """Waits for the time that a sample's prompt specifies."""

    def __init__(self) -> None:
        self.models = {"target": "t0"}

    engine = "eager"

    def run(self, steps: Sequence[Step]) -> Iterator[tuple[Step, dict[str, Any]]]:
        """Wait, and return a minimal record."""
        for step in steps:
            time.sleep(float(step.example.prompt))
            yield step, {"task": step.plan.task.name, "sample_id": step.example.id, **RECORD}

    def opening_facts(self) -> dict[str, Any]:
        """Return no facts."""
        return {}

    def closing_facts(self) -> dict[str, Any]:
        """Return the facts that a run requires."""
        return {"engine": self.engine, "warm_ups": [], "gpus_at_the_end": []}


class Worker(RayWorker):
    """A worker without models that is not bound to a core."""

    def _take_device(self, gpu: bool) -> str:
        return "simulated"

    def load(self, plan: Plan) -> Any:
        return Runner()


class Clock(Display):
    """Records when the last worker started to work, and counts the samples since then."""

    def __init__(self, total: int, workers: int) -> None:
        super().__init__(total)
        self._missing = workers
        self.samples, self.began, self.ended = 0, 0.0, 0.0

    def worker(self, number: int, state: str, device: str = "") -> None:
        """Record that a worker started."""
        self._missing -= state == "decoding"
        if not self._missing and not self.began:
            self.began = time.perf_counter()

    def __call__(self, *records: Any) -> None:
        """Record the time of samples."""
        self.ended = time.perf_counter()
        self.samples += len(records) if self.began else 0


def main() -> None:
    """Execute a plan of samples that only wait, and print the overhead."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    examples = [Example(str(n), str(options.seconds)) for n in range(options.samples // TASKS)]
    tasks = [
        Task(f"t{n}", "1", "", (), (), 16, PromptList(tuple(examples)), Path("t.toml"))
        for n in range(TASKS)
    ]
    variants = method_variants(["sd"], {})
    plan = build_plan(PairSpec("p", "t", "d"), tasks, variants, [5], Settings())
    ray_pool.uses_gpus = lambda *_: False  # allow more workers than cores, because they only wait
    store.write_samples = lambda folder: False  # the records have no measurements
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(len(plan), options.workers)
        with (
            ray_pool.RayPool(options.workers, None, Loading(), Worker) as workers,
            store.Store.open(Path(folder) / "r", "run", plan.describe()) as opened,
        ):
            workers._actor = workers._actor.options(num_cpus=0)
            execute(plan, opened, workers, clock)
    least = clock.samples * options.seconds / options.workers
    took = clock.ended - clock.began
    print(
        f"{clock.samples} samples over {options.workers} workers that are all at work: "
        f"{took:.1f} s, at least {least:.1f} s: overhead {took / least - 1:.2%}"
    )


if __name__ == "__main__":
    main()
