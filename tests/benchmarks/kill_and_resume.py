"""Kill a run or its workers at random, and compare its tables with an uninterrupted run.

    python tests/benchmarks/kill_and_resume.py [--times 50] [--seed 0] [--workers]

Without ``--workers`` the run is killed with SIGKILL and the same command resumes it, ``--times``
times. With ``--workers``, two workers execute the run, and one of them is killed while it decodes,
after random numbers of samples (needs Ray and Linux). Apart from timings the tables must be equal:
no sample is lost or duplicated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

MAIN = [sys.executable, "-c", "from specbench.cli.app import main; main()"]
PLAN = ["run", "-m", "autoregressive,sd,static,diversed", "-t", "mini-math,mini-code"]
PLAN += ["-n", "40", "--no-progress"]
SAMPLES = 4 * 2 * 40
AT_WORK = (b"ray::Worker.measure",)


def main() -> None:
    """Kill the run or its workers, then compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", action="store_true", help="kill workers, not the run")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, killed = Path(folder) / "undisturbed", Path(folder) / "killed"
        took = -time.monotonic()
        subprocess.run([*MAIN, *PLAN, "-o", str(undisturbed)], check=True, capture_output=True)
        took += time.monotonic()
        if options.workers:
            kill_workers(killed, options.times)
            compare(undisturbed, killed)
        else:
            kill_runs(undisturbed, killed, options.times, took)
    print(f"{options.times} kills; {SAMPLES} samples, none lost, none twice: tables equal")


def kill_runs(undisturbed: Path, killed: Path, times: int, took: float) -> None:
    """Kill and resume a run; if it completes, compare its tables and start a new run."""
    kills = 0
    while True:
        command = [*MAIN, *PLAN, "-o", str(killed)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(random.uniform(0, took) if kills < times else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        said = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        if process.returncode == 0:
            compare(undisturbed, killed)
            if kills == times:
                return
            killed = killed.with_name(f"killed-{kills}")


def kill_workers(output: Path, times: int) -> None:
    """Run the plan with two workers, and kill one of them at random numbers of samples."""
    command = [*MAIN, *PLAN, "-o", str(output), "--workers", "2"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    moments = sorted(random.sample(range(1, SAMPLES - 20), times))
    while moments and run.poll() is None:
        records = output / "samples.jsonl"
        recorded = records.read_bytes().count(b"\n") if records.exists() else 0
        targets = list(workers_of(run.pid)) if recorded >= moments[0] else []
        if targets:
            os.kill(random.choice(targets), signal.SIGKILL)
            del moments[0]
        else:
            time.sleep(0.02)
    said = run.communicate()[0].decode()
    assert run.returncode == 0, said
    assert not moments, f"the run ended {len(moments)} kills too early"


def workers_of(driver: int) -> Iterator[int]:
    """Yield the child processes of the driver that are decoding."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            decodes = (folder / "cmdline").read_bytes().startswith(AT_WORK)
            if decodes and driver in ancestors(int(folder.name)):
                yield int(folder.name)
        except OSError:
            continue


def ancestors(process: int) -> Iterator[int]:
    """Yield the ancestors of a process."""
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        yield process


def compare(expected: Path, found: Path) -> None:
    """Compare the tables of two runs, except timings and devices."""
    for name in ("samples.csv", "summary.csv"):
        one, other = (untimed(pd.read_csv(folder / name)) for folder in (expected, found))
        pd.testing.assert_frame_equal(one, other)
    records = (found / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(records) == len({json.loads(line)["key"] for line in records}) == SAMPLES


def untimed(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns of timings and devices."""
    if "metric" in table:
        table = table[~table["metric"].str.contains("second|speedup")].reset_index(drop=True)
    return table[[name for name in table if "second" not in name and name != "device"]]


if __name__ == "__main__":
    main()
