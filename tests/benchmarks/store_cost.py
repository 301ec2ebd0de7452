"""Measure the share of a run's time that the store takes, with and without syncing to disk.

    python tests/benchmarks/store_cost.py [--samples 200] [--seconds 0.05] [--folder .]

A sample takes ``--seconds`` to decode, which is simulated by waiting; the bundled pair takes about
as long. The records are as large as those of 64 tokens. ``--folder`` is on the disk to measure. The
first sample and the end of a run are synced at any cost, which only shows in a run of seconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specbench.config import Settings
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.store import Store
from specbench.experiment.variants import method_variants
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import load_task

RECORD = {"status": "ok", "text": "x" * 250, "token_ids": [1234] * 64, "rounds": [0.1234] * 500}


def main() -> None:
    """Print the time of one sample in the store for each way of syncing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    variants = method_variants(["sd"], {})
    plan = build_plan(
        PairSpec("p", "t", "d"), [load_task("mini-math")], variants, [5], Settings(),
        limit=options.samples,
    )  # fmt: skip
    fsync, seconds = os.fsync, 0.0

    def timed_fsync(handle: int) -> None:
        nonlocal seconds
        began = time.perf_counter()
        fsync(handle)
        seconds += time.perf_counter() - began

    ways: dict[str, tuple[Callable[[int], None], bool]] = {
        "without syncing": (lambda handle: None, False),
        "as in a run": (timed_fsync, False),
        "after each sample": (timed_fsync, True),
    }
    for name, (os.fsync, always) in ways.items():
        seconds, processor = 0.0, time.process_time()
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            spent, syncs = measure(plan, Path(folder) / "r", options.seconds, always)
        processor = time.process_time() - processor
        share = spent / (spent + options.seconds * options.samples)
        print(
            f"{name}: {1000 * spent / options.samples:.2f} ms per sample in the store, "
            f"{1000 * seconds / options.samples:.2f} ms of it in {syncs} syncs; "
            f"{share:.2%} of the run; {1000 * processor / options.samples:.2f} ms of processor time"
        )


def measure(plan: Plan, folder: Path, pause: float, always: bool) -> tuple[float, int]:
    """Record all samples of a plan; return the seconds in the store and the number of syncs."""
    spent, syncs = 0.0, 0
    store = Store(folder, plan.describe())
    store.expect(plan, {}, "eager")
    for step in plan.steps():
        time.sleep(pause)
        began = time.perf_counter()
        safe = store.record(step, {**plan.identify(step, "eager"), **RECORD})
        safe = store.sync() if always and not safe else safe
        spent += time.perf_counter() - began
        syncs += bool(safe)
    began = time.perf_counter()
    store.sync()
    return spent + time.perf_counter() - began, syncs + 1


if __name__ == "__main__":
    main()
