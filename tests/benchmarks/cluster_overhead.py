"""What scheduling costs: many samples of a simulated second each over many simulated workers.

    python -m tests.benchmarks.cluster_overhead [--samples 10000] [--workers 64] [--seconds 1]

Workers are Ray's, which wait instead of decoding; all else is what a run uses. The overhead is the
time per sample beyond that which the workers need for it, from the moment that all are at work.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench.cluster import pool, worker
from specbench.cluster.execute import execute
from specbench.config import Loading, Settings
from specbench.example import Example
from specbench.experiment import store
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
    """Waits as long as the prompt of a sample says."""

    def __init__(self) -> None:
        self.models = {"target": "t0"}

    engine = "eager"

    def run(self, steps: Sequence[Step]) -> Iterator[tuple[Step, dict[str, Any]]]:
        """Find what a sample of a run amounts to."""
        for step in steps:
            time.sleep(float(step.example.prompt))
            yield step, {"task": step.plan.task.name, "sample_id": step.example.id, **RECORD}

    def opening_facts(self) -> dict[str, Any]:
        """There is nothing to say."""
        return {}

    def closing_facts(self) -> dict[str, Any]:
        """There is nothing to say."""
        return {"engine": self.engine, "warm_ups": [], "gpus_at_the_end": []}


class Worker(worker.Worker):
    """A worker without models that keeps to no core."""

    def _take_device(self, gpu: bool) -> str:
        return "simulated"

    def _make_runner(self, plan: Plan) -> Any:
        return Runner()


class Clock(Display):
    """Notes when the last worker began to work, and the samples found since then."""

    def __init__(self, total: int, workers: int) -> None:
        super().__init__(total)
        self._missing = workers
        self.samples, self.began, self.ended = 0, 0.0, 0.0

    def worker(self, number: int, state: str, device: str = "") -> None:
        """Note a worker that begins."""
        self._missing -= state == "decoding"
        if not self._missing and not self.began:
            self.began = time.perf_counter()

    def __call__(self, record: Any) -> None:
        """Note the time."""
        self.ended = time.perf_counter()
        self.samples += bool(self.began)


def main() -> None:
    """Carry out a plan of samples that only wait, and print the overhead."""
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
    pool.uses_gpus = lambda *_: False  # more workers than cores: what waits needs none
    store.write_tables = lambda folder: None  # there is nothing to make tables of
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(len(plan), options.workers)
        with (
            pool.Pool(options.workers, None, Loading(), Worker) as workers,
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
