"""Kill a run again and again, resume it each time, and compare its tables with an undisturbed run.

    python tests/benchmarks/kill_and_resume.py [--times 50] [--seed 0]

Each time the run is started anew, killed with SIGKILL at a random moment, and the same command is
given again, until it has survived so many kills; then it is left to end. Its tables must be those
of a run that nobody disturbed, timings aside: no sample lost, none twice.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

MAIN = [sys.executable, "-c", "from specbench.cli.app import main; main()"]
PLAN = ["run", "-m", "autoregressive,sd,diversed", "-t", "mini-math,mini-code", "--no-progress"]
TABLES = ("samples.csv", "summary.csv")
KEYS = ["task", "method", "sample_id", "repeat"]


def main() -> None:
    """Kill as often as asked, then compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills, samples = survive(Path(folder), options.times, options.seed, [*PLAN, "-n", "40"])
    print(
        f"{kills} kills at random moments; {samples} samples, none lost, none twice: tables equal"
    )


def survive(folder: Path, times: int, seed: int, plan: list[str]) -> tuple[int, int]:
    """Run a plan undisturbed and again with kills, and compare the tables.

    Returns:
        Kills and samples.

    Raises:
        AssertionError: The tables differ.
    """
    undisturbed, killed = folder / "undisturbed" / "run", folder / "killed" / "run"
    took = -time.monotonic()
    subprocess.run([*MAIN, *plan, "-o", str(undisturbed)], check=True, capture_output=True)
    took += time.monotonic()
    chance, kills = random.Random(seed), 0
    while kills < times:
        command = [*MAIN, *plan, "-o", str(killed)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(chance.uniform(0, took))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        said = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), said.decode()
        if process.returncode == 0:  # it ended first: begin again, with what is left to kill
            compare(undisturbed, killed)
            killed = folder / f"killed-{kills}" / "run"
    subprocess.run([*MAIN, *plan, "-o", str(killed)], check=True, capture_output=True)
    return kills, compare(undisturbed, killed)


def compare(expected: Path, found: Path) -> int:
    """Compare the tables of two runs, timings aside; return how many samples they have."""
    samples = 0
    for name in TABLES:
        one, other = (without_times(pd.read_csv(folder / name)) for folder in (expected, found))
        pd.testing.assert_frame_equal(one, other)
        samples = samples or len(one)
    assert not pd.read_csv(found / TABLES[0]).duplicated(KEYS).any()
    return samples


def without_times(table: pd.DataFrame) -> pd.DataFrame:
    """Drop what is measured with a clock."""
    if "metric" in table:
        timed = table["metric"].str.contains("second|speedup")
        return table[~timed].reset_index(drop=True)
    return table[[name for name in table if "second" not in name]]


if __name__ == "__main__":
    main()
