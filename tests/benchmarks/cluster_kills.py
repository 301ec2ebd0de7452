"""Kill workers at random while a run with two of them goes on, and compare its tables.

    python tests/benchmarks/cluster_kills.py [--times 20] [--seed 0]

A plan of 400 samples is measured by one process, and by two workers of which one or the other is
killed with SIGKILL while it decodes, when random numbers of samples are there. The tables must be
equal, timings and devices aside: no sample lost, none twice, none failed. Needs Ray and Linux.
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
PLAN = ["run", "-m", "autoregressive,sd,static,diversed", "-t", "mini-math,mini-news"]
PLAN += ["-n", "50", "--no-progress"]
AT_WORK = (b"ray::Bench.measure", b"ray::Bench.roll_out")
SAMPLES = 400


def main() -> None:
    """Run both, kill as often as asked, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone, killed = Path(folder) / "alone" / "run", Path(folder) / "killed" / "run"
        subprocess.run([*MAIN, *PLAN, "-o", str(alone)], check=True, capture_output=True)
        kills = kill_and_wait(killed, options.times, random.Random(options.seed))
        samples = compare(alone, killed)
        records = (killed / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        keys = {json.loads(line)["key"] for line in records}
        assert len(records) == len(keys) == samples, "a sample was recorded twice"
    print(f"{kills} workers killed; {samples} samples, none lost, none twice: tables equal")


def kill_and_wait(output: Path, times: int, chance: random.Random) -> int:
    """Run the plan with two workers and kill one at so many random counts of samples.

    Returns:
        The kills.
    """
    command = [*MAIN, *PLAN, "-o", str(output), "--workers", "2"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    moments = sorted(chance.sample(range(1, SAMPLES - 20), times))
    kills = 0
    while kills < times and run.poll() is None:
        if recorded(output) < moments[kills]:
            time.sleep(0.02)
        elif targets := list(workers_of(run.pid)):
            os.kill(chance.choice(targets), signal.SIGKILL)
            kills += 1
    said = run.communicate()[0].decode()
    assert run.returncode == 0, said
    assert kills == times, f"the run ended after {kills} kills"
    return kills


def recorded(output: Path) -> int:
    """Return how many samples are there."""
    try:
        return (output / "samples.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def workers_of(driver: int) -> Iterator[int]:
    """Yield the processes below the driver that decode right now."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            decodes = (folder / "cmdline").read_bytes().startswith(AT_WORK)
            if decodes and driver in ancestors(int(folder.name)):
                yield int(folder.name)
        except OSError:
            continue


def ancestors(process: int) -> Iterator[int]:
    """Yield the parents of a process."""
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        yield process


def compare(expected: Path, found: Path) -> int:
    """Compare the tables of two runs; return how many samples they have."""
    samples = 0
    for name in ("samples.csv", "summary.csv"):
        one, other = (untimed(pd.read_csv(folder / name)) for folder in (expected, found))
        pd.testing.assert_frame_equal(one, other)
        samples = samples or len(one)
    return samples


def untimed(table: pd.DataFrame) -> pd.DataFrame:
    """Drop what is measured with a clock, and where."""
    if "metric" in table:
        table = table[~table["metric"].str.contains("second|speedup")].reset_index(drop=True)
    return table[[name for name in table if "second" not in name and name != "device"]]


if __name__ == "__main__":
    main()
