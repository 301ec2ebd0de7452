"""Train the heads and drafts that a suite needs, each with a separate command.

A separate process frees its memory at exit. A head does not depend on the process that trains it,
so workers can train several in parallel. Other shards of a suite in the same folder wait for locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock, Timeout

from specbench.config import DataOptions, Loading
from specbench.decoding.heads.registry import is_head
from specbench.errors import RunError
from specbench.experiment.execute import CommandResult
from specbench.experiment.suites.suite import HEADS, Job
from specbench.files import make_folder

RunCommands = Callable[[Sequence[list[str]]], Iterator[CommandResult]]


def train_all(
    jobs: Iterable[Job], output: Path, command: Callable[[Job], list[str]], run: RunCommands
) -> Iterator[Job]:
    """Train the pending jobs; yield each job when it is done.

    Args:
        jobs: Heads and drafts that are needed.
        output: The suite's output folder.
        command: Returns the command-line arguments of a job.
        run: Runs such commands, possibly in parallel, and yields their outcomes.

    Raises:
        RunError: A training failed, here or in another process.
    """
    waiting = [job for job in dict.fromkeys(jobs) if not is_trained(job, output)]
    elsewhere: list[Job] = []
    with ExitStack() as locks:
        locked = []
        for job in waiting:
            try:
                locks.enter_context(_lock(job, output).acquire(blocking=False))
                locked.append(job)
            except Timeout:
                elsewhere.append(job)
        # Check again: another process may have trained them before we took the locks.
        locked = [job for job in locked if not is_trained(job, output)]
        for number, code, message in run([command(job) for job in locked]):
            if code:
                raise RunError(f"training {locked[number]} failed: {message.strip() or code}")
            yield locked[number]
    for job in elsewhere:
        logging.getLogger(__name__).warning("waiting for another process to train %s", job)
        with _lock(job, output):
            if not is_trained(job, output):
                raise RunError(f"another process did not finish training {job}: run again")


def is_trained(job: Job, output: Path) -> bool:
    """Return whether a head or draft is already trained."""
    folder = job.folder(output)
    return is_head(folder) if job.table.what == HEADS else (folder / "config.json").is_file()


def training_command(
    job: Job, output: Path, loading: Loading, data: DataOptions, may_execute: bool
) -> list[str]:
    """Return the command-line arguments that train a job."""
    heads = job.table.what == HEADS
    parts = ["train" if heads else "finetune-draft", "--pair", job.pair, "--task", job.task]
    parts += ["--no-progress", "--output", str(job.folder(output).parent), *data.retyped()]
    for name, value in job.table.options.items():
        parts += [f"--{name.replace('_', '-')}", str(value)]
    if not heads:
        return [*parts, "--device", loading.device]
    return [*parts, *loading.retyped(), "--resume", *["--allow-code-execution"] * may_execute]


def _lock(job: Job, output: Path) -> FileLock:
    folder = job.folder(output)
    make_folder(folder.parent)
    return FileLock(folder.with_name(f".{job.task}.lock"))
