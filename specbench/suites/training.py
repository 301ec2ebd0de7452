"""Training what the runs of a suite need: each head or draft by a command of its own.

A command of its own gives its memory back, and a head is the same whoever trains it, so several
workers train several at a time. Other shards of a suite in the same folder wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock, Timeout

from specbench.config import DataOptions, Loading
from specbench.errors import RunError
from specbench.heads.registry import is_head
from specbench.suites.suite import HEADS, Job

Outcome = tuple[int, int, str]  # number of the command, its exit code, what it said
RunAll = Callable[[Sequence[list[str]]], Iterator[Outcome]]


def train_all(
    jobs: Iterable[Job], output: Path, command: Callable[[Job], list[str]], run: RunAll
) -> Iterator[Job]:
    """Train what is not trained yet; yield each job that is done.

    Args:
        jobs: What is needed.
        output: Where the suite goes.
        command: Returns the arguments of the command that does a job.
        run: Runs such commands, perhaps several at a time, and tells what became of each.

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
        # Looked at again, now that nobody else can be at work on them.
        locked = [job for job in locked if not is_trained(job, output)]
        for number, code, said in run([command(job) for job in locked]):
            if code:
                raise RunError(f"training {locked[number]} failed: {said.strip() or code}")
            yield locked[number]
    for job in elsewhere:
        logging.getLogger(__name__).warning("waiting for another process that trains %s", job)
        with _lock(job, output):
            if not is_trained(job, output):
                raise RunError(f"another process has not finished training {job}: start again")


def is_trained(job: Job, output: Path) -> bool:
    """Tell whether a head or a draft is there."""
    folder = job.folder(output)
    return is_head(folder) if job.training.what == HEADS else (folder / "config.json").is_file()


def training_command(
    job: Job, output: Path, loading: Loading, data: DataOptions, may_execute: bool
) -> list[str]:
    """Return the arguments of the command that does a job."""
    heads = job.training.what == HEADS
    parts = ["train" if heads else "finetune-draft", "--pair", job.pair, "--task", job.task]
    parts += ["--no-progress", "--output", str(job.folder(output).parent), *data.retyped()]
    for name, value in job.training.options.items():
        parts += [f"--{name.replace('_', '-')}", str(value)]
    if not heads:
        return [*parts, "--device", loading.device]
    return [*parts, *loading.retyped(), "--resume", *["--allow-code-execution"] * may_execute]


def _lock(job: Job, output: Path) -> FileLock:
    folder = job.folder(output)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{job.task}.lock"))
