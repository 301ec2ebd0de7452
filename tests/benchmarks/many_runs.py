"""Time what reads a results folder of 2,000 runs with a million samples.

    python tests/benchmarks/many_runs.py [--runs R] [--prompts P] [--folder DIR] [COMMAND ...]

Synthetic runs of ten cells on one of four tasks are written to a folder, a temporary one unless it
is named, which is then kept and used again. Each command runs in a process of its own, on two
cores at most; memory is its peak. A COMMAND is one line, by default ``summary``, ``table`` and
``plot pareto``; the folder of runs and where the output goes are added to it.
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
import pandas as pd
from rich.console import Console
from rich.table import Table

from specbench.analysis.digest import digest
from specbench.analysis.frames import SAMPLES, typed
from specbench.analysis.summary import summarise

COMMANDS = ("summary --output {out}/summary.csv", "table", "plot pareto --output {out}")
SECONDS, GIBIBYTES = 10, 2  # what the project promises
TASKS = {"math": "accuracy", "code": "pass@1", "news": "rouge2", "headline": "rouge2"}
CELLS = (
    ("autoregressive", {}),
    ("sd", {}),
    ("lossy", {"lenience": 0.5}),
    ("speccascade", {"rule": "token-v3", "alpha": 0.5}),
    ("diversed", {"head": "bundled"}),
    *(("static", {"weight": weight}) for weight in (0.0, 0.2, 0.4, 0.6, 0.8)),
)


def main() -> None:
    """Write the runs, then time the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=50, help="of each run; ten samples of each")
    parser.add_argument("--folder", type=Path, help="where the runs are or go, and stay")
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
    """Write runs that differ in their id, their seed and, by a little, in every figure."""
    rng = np.random.default_rng(0)
    patterns = {task: _pattern(rng, task, metric, prompts) for task, metric in TASKS.items()}
    for number in range(runs):
        task = list(TASKS)[number % len(TASKS)]
        rows, summary, page, samples = patterns[task]
        run = folder / f"run-{number:05}"
        run.mkdir(parents=True)
        scale = rng.normal(1, 0.02, (len(summary), 1))
        figures = summary.assign(run_id=run.name)
        figures[["value", "ci_low", "ci_high"]] *= scale
        config = {
            "specbench": "0.1.0",
            "pair": {"name": "mini", "target": "target", "draft": "draft"},
            "settings": {"temperature": 1.0, "seed": number, "repeats": 1},
            "samples_planned": samples,
            "tasks": [{"name": task, "metrics": [TASKS[task]]}],
            "progress": {"state": "complete", "samples": samples, "failed": 0},
        }
        (run / "config.json").write_text(json.dumps(config))
        (run / "samples.csv").write_text(rows.replace("RUN", run.name))
        (run / "summary.csv").write_text(figures.to_csv(index=False))
        (run / "summary.md").write_text(page)


def _pattern(
    rng: np.random.Generator, task: str, metric: str, prompts: int
) -> tuple[str, pd.DataFrame, str, int]:
    """The samples of one run as text, their summary, its page, and how many samples they are."""
    samples = pd.DataFrame(
        [
            _sample(rng, task, method, parameters) | {"quality_metric": metric, "sample_id": f"{i}"}
            for i in range(prompts)
            for method, parameters in CELLS
        ]
    ).reindex(columns=list(SAMPLES))
    samples = typed(samples, SAMPLES, "the benchmark")
    summary = summarise(samples)
    return samples.to_csv(index=False), summary, digest(samples, summary), len(samples)


def _sample(
    rng: np.random.Generator, task: str, method: str, parameters: dict[str, object]
) -> dict[str, object]:
    """A sample whose acceptance falls and whose quality rises with the weight on the target."""
    weight = float(str(parameters.get("weight", 0.5 if method == "diversed" else 0.9)))
    drafted = method != "autoregressive"
    tokens = int(rng.integers(40, 100))
    rounds = tokens // 3 if drafted else tokens
    proposed = 5 * rounds if drafted else 0
    accepted = int(rng.binomial(proposed, 1 - 0.4 * weight)) if drafted else None
    phases = rng.uniform(0.9, 1.1, 3) * rounds * np.array([0.002 * drafted, 0.003, 0.001])
    return {
        **{"run_id": "RUN", "pair": "mini", "task": task, "method": method, **parameters},
        **{"temperature": 1.0, "draft_length": 5 * drafted, "engine": "eager", "batch_size": 1},
        **{"seed": 0, "repeat": 0, "quality": float(rng.random() < 0.3 + 0.7 * weight)},
        **{"prompt_tokens": 50, "output_tokens": tokens, "rounds": rounds},
        **{"proposed": proposed, "accepted": accepted, "judged": proposed if drafted else None},
        "draft_acceptance_rate": accepted / proposed if accepted is not None else None,
        "acceptance_length": tokens / rounds if drafted else None,
        "expected_acceptance": 1 - 0.4 * weight if drafted else None,
        "mean_weight": weight if method in ("static", "diversed") else None,
        **dict(zip(("draft_seconds", "verify_seconds", "accept_seconds"), phases, strict=True)),
        **{"prefill_seconds": 0.01, "decode_seconds": phases.sum()},
        **{"latency_seconds": 0.01 + phases.sum(), "tokens_per_second": tokens / phases.sum()},
        "stopped_by": "eos" if rng.random() < 0.9 else "length",
    }


def timed(line: str, folder: Path, out: Path) -> tuple[float, float, int]:
    """Run a command on the folder: seconds, peak GiB and exit code."""
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
    """Print a row per command, and whether it is within what is promised."""
    table = Table(title=f"{sum(1 for _ in folder.glob('*/samples.csv')):,} runs")
    for heading in ("command", "seconds", "peak GiB", ""):
        table.add_column(heading, justify="left" if heading in ("command", "") else "right")
    for line, seconds, peak, code in measured:
        within = seconds < SECONDS and peak < GIBIBYTES
        verdict = f"failed with {code}" if code else "within" if within else "over"
        table.add_row(line.split(" --")[0], f"{seconds:.1f}", f"{peak:.2f}", verdict)
    Console().print(table)
    if any(code for *_, code in measured):
        sys.exit(1)


if __name__ == "__main__":
    main()
