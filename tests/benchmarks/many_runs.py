"""Time the commands that read 2,000 runs with a million samples.

    python tests/benchmarks/many_runs.py [--runs R] [--prompts P] [--folder DIR] [COMMAND ...]

The runs are copies of the tasks of ``results/reference`` with noise on their numbers. They are
written to a temporary folder, or to ``--folder``, which is kept and reused. Each command runs in a
separate process on at most two cores; memory is its peak. A COMMAND is one line, by default
``summary``, ``table`` and ``plot pareto``; the folder of runs and an output folder are appended.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from specbench.analysis.run_tables import summary_page
from specbench.analysis.summary import summarise
from specbench.cli.output import print_table
from specbench.runs.frames import read_samples
from specbench.table import Column, Table

COMMANDS = ("summary --output {out}/summary.csv", "table", "plot pareto --output {out}")
SECONDS, GIBIBYTES = 10, 2  # targets of the project
REFERENCE = Path("results/reference")


def main() -> None:
    """Write the runs, then time the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument(
        "--prompts", type=int, default=45, help="prompts per run, with eleven samples each"
    )
    parser.add_argument("--folder", type=Path, help="folder of the runs, kept and reused")
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), metavar="COMMAND")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "results"
        if not folder.exists():
            write_runs(folder, options.runs, options.prompts)
        show([(line, *timed(line, folder, Path(temporary))) for line in options.commands], folder)


def write_runs(folder: Path, runs: int, prompts: int) -> None:
    """Write runs of one task each, with different ids and slightly different numbers."""
    rng = np.random.default_rng(0)
    known = json.loads((REFERENCE / "config.json").read_text())
    patterns = []
    for task, samples in read_samples(REFERENCE).groupby("task", sort=False):
        kept = samples["sample_id"].isin(samples["sample_id"].unique()[:prompts])
        samples = samples[kept].assign(run_id="RUN").reset_index(drop=True)
        summary = summarise(samples)
        page = summary_page(samples, summary)
        tasks = [entry for entry in known["tasks"] if entry["name"] == task]
        planned = {"tasks": tasks, "samples_planned": len(samples)}
        progress = {"state": "complete", "samples": len(samples), "failed": 0}
        config = json.dumps(known | planned | {"progress": progress})
        patterns.append((samples.to_csv(index=False), summary, page, config))
    for number in range(runs):
        rows, summary, page, config = patterns[number % len(patterns)]
        run = folder / f"run-{number:05}"
        run.mkdir(parents=True)
        figures = summary.assign(run_id=run.name)
        figures[["value", "ci_low", "ci_high"]] *= rng.normal(1, 0.02, (len(summary), 1))
        (run / "config.json").write_text(config)
        (run / "samples.csv").write_text(rows.replace("RUN", run.name))
        (run / "summary.csv").write_text(figures.to_csv(index=False))
        (run / "summary.md").write_text(page)


def timed(line: str, folder: Path, out: Path) -> tuple[float, float, int]:
    """Run a command on the folder; return seconds, peak GiB and exit code."""
    words = [word.format(out=out) for word in shlex.split(line)]
    command = [sys.executable, "-m", "specbench", *words, str(folder)]
    started = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - started
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return seconds, usage.ru_maxrss * unit / 2**30, os.waitstatus_to_exitcode(status)


def show(measured: list[tuple[str, float, float, int]], folder: Path) -> None:
    """Print one row per command, and whether it meets the targets."""
    rows = []
    for line, seconds, peak, code in measured:
        within = seconds < SECONDS and peak < GIBIBYTES
        verdict = f"failed with {code}" if code else "within" if within else "over"
        rows.append([line.split(" --")[0], f"{seconds:.1f}", f"{peak:.2f}", verdict])
    columns = [Column(name) for name in ("command", "seconds", "peak GiB", "")]
    print_table(Table(f"{sum(1 for _ in folder.glob('*/samples.csv')):,} runs", columns, rows))
    if any(code for *_, code in measured):
        sys.exit(1)


if __name__ == "__main__":
    main()
