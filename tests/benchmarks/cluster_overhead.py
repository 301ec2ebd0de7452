"""What scheduling costs: many cells of a simulated second each over many simulated workers.

    python tests/benchmarks/cluster_overhead.py [--cells 10000] [--workers 64] [--seconds 1]

Workers are actors of Ray that wait instead of decoding; all else is what a run uses: the schedule,
the crew, and the store, whose writer is timed by itself first. The overhead is the time beyond that
which the workers would need if they always had work, the last round rounded up.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.cluster.crew import Found, Ready, carry_out
from specbench.cluster.ray_actor import Actor, Cores
from specbench.cluster.ray_pool import RayWorker
from specbench.cluster.schedule import Batch, Row
from specbench.experiment.plan import Place
from specbench.experiment.store import Store

TASKS = 4
RECORD: dict[str, Any] = {
    "pair": "p", "task": "t", "method": "sd", "temperature": 1.0, "draft_length": 5,
    "engine": "eager", "batch_size": 1, "seed": 0, "repeat": 0, "quality_metric": "accuracy",
    "output_tokens": 128, "text": "word " * 128, "token_ids": list(range(128)), "status": "ok",
    "per_round": {name: [0.1234] * 40 for name in ("proposed", "accepted", "emitted", "expected")},
}  # fmt: skip


class Idle:
    """A worker that waits as long as a cell is to take."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._seconds = 0.0

    def cores(self) -> tuple[str, list[int]]:
        """There is no core to keep to."""
        return "simulated", []

    def keep_to(self, core: int | None, gpu: bool) -> None:
        """Nothing to do."""

    def start(self, seconds: float) -> dict[str, Any]:
        """Be told how long a cell takes."""
        self._seconds = seconds
        return {}

    def measure(self, batches: Sequence[Sequence[Place]]) -> Iterator[tuple[Place, Any]]:
        """Wait, and find what a sample of a run amounts to."""
        for places in batches:
            for place in places:
                time.sleep(self._seconds)
                yield place, RECORD

    def end(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}


def main() -> None:
    """Time the writer, then the crew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with Store.open(Path(folder) / "w", "run", {"samples_planned": 0, "tasks": []}) as store:
            rates = sorted(write(store, 2000) for _ in range(5))
            store._samples.clear()  # nothing to make tables of
        print(
            f"writer: {rates[2]:.0f} samples/s, {rates[0]:.0f} to {rates[-1]:.0f} in 5 times 2000"
        )
        with Store.open(Path(folder) / "r", "run", {"samples_planned": 0, "tasks": []}) as store:
            took = simulate(store, options.cells, options.workers, options.seconds)
            store._samples.clear()
    least = math.ceil(options.cells / options.workers) * options.seconds
    print(
        f"{options.cells} cells over {options.workers} workers: {took:.1f} s, at least {least:.1f} "
        f"s: overhead {took / least - 1:.2%}"
    )


def sample(name: object) -> dict[str, Any]:
    """What a run records of a sample."""
    return {**RECORD, "sample_id": str(name)}


def write(store: Store, number: int) -> float:
    """Return how many samples a second the store takes."""
    began = time.perf_counter()
    for key in range(number):
        store.append({"key": str(key), "place": [0, 0, key, 0], "run_id": "w", **sample(key)})
    return number / (time.perf_counter() - began)


def simulate(store: Store, cells: int, workers: int, seconds: float) -> float:
    """Return the seconds from when all workers are there until all samples are in the store."""
    import ray

    # More workers than cores: what waits needs none.
    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    actors = [Actor(ray, Idle, False, Cores()) for _ in range(workers)]
    for actor in actors:
        actor.settle()
    shared = ray.put(seconds)
    rows = [Row(n % TASKS, (Batch(((n % TASKS, 0, n, 0),)),)) for n in range(cells)]
    began, found, ready = time.perf_counter(), 0, 0
    for event in carry_out(lambda n: RayWorker(actors[n], shared), workers, lambda facts: rows):
        if isinstance(event, Ready):
            ready += 1
        if isinstance(event, Found):
            found += 1
            store.append({"key": str(event.place), "place": event.place, **sample(event.place)})
            took = time.perf_counter() - began
    assert (found, ready) == (cells, workers)
    for actor in actors:
        actor.dismiss()
    ray.shutdown()
    return took


if __name__ == "__main__":
    main()
