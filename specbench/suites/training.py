"""Training what the runs of a suite need: each head or draft by a command of its own.

A command of its own gives its memory back, and a head is the same whoever trains it, so several
workers train several at a time. Other shards of a suite in the same folder wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from specbench.engine.settings import Loading
from specbench.errors import RunError
from specbench.heads.registry import is_head
from specbench.suites.suite import DRAFTS, HEADS, Job

Outcome = tuple[int, int, str]  # number of the command, its exit code, what it said
RunAll = Callable[[Sequence[list[str]]], Iterator[Outcome]]


def train_all(
    jobs: Iterable[Job],
    output: Path,
    command: Callable[[Job], list[str]],
    run: RunAll,
    note: Callable[[str], object],
) -> None:
    """Train what is not trained yet.

    Args:
        jobs: What is needed.
        output: Where the suite goes.
        command: Returns the arguments of the command that does a job.
        run: Runs such commands, perhaps several at a time, and tells what became of each.
        note: Told what the user should know.

    Raises:
        RunError: A training failed, here or in another process.
    """
    waiting = [job for job in dict.fromkeys(jobs) if not is_trained(job, output)]
    elsewhere: list[Job] = []
    with ExitStack() as locks:
        mine = []
        for job in waiting:
            try:
                lock = _lock(job, output)
                locks.enter_context(lock.acquire(blocking=False))
                mine.append(job)
            except Timeout:
                elsewhere.append(job)
        # Looked at again, now that nobody else can be at work on them.
        mine = [job for job in mine if not is_trained(job, output)]
        for number, code, said in run([command(job) for job in mine]):
            if code:
                job = mine[number]
                raise RunError(f"training {_named(job)} failed: {said.strip() or code}")
            note(f"trained {_named(mine[number])}: {mine[number].folder(output)}")
    for job in elsewhere:
        note(f"waiting for another process that trains {_named(job)}")
        with _lock(job, output):
            if not is_trained(job, output):
                raise RunError(
                    f"another process has not finished training {_named(job)}: start again"
                )


def is_trained(job: Job, output: Path) -> bool:
    """Tell whether a head or a draft is there."""
    folder = job.folder(output)
    return is_head(folder) if job.training.what == HEADS else (folder / "config.json").is_file()


def training_command(job: Job, output: Path, loading: Loading, further: Sequence[str]) -> list[str]:
    """Return the arguments of the command that does a job.

    Args:
        job: What to train.
        output: Where the suite goes.
        loading: How the pair is loaded.
        further: Options of data, and for heads whether programs may be run.
    """
    what = "train" if job.training.what == HEADS else "finetune-draft"
    parts = [what, "--pair", job.pair, "--task", job.task, "--no-progress"]
    parts += ["--output", str(job.folder(output).parent)]
    for name, value in job.training.options.items():
        parts += [f"--{name.replace('_', '-')}", str(value)]
    if job.training.what == DRAFTS:
        return [*parts, "--device", loading.device, *_without_code(further)]
    for name, value in asdict(loading).items():
        if value != getattr(Loading(), name):
            option = f"--{name.replace('_', '-')}"
            parts += [option] if value is True else [option, str(value)]
    return [*parts, "--resume", *further]


def _without_code(further: Sequence[str]) -> list[str]:
    return [part for part in further if part != "--allow-code-execution"]


def _named(job: Job) -> str:
    return f"the {job.training.what.removesuffix('s')} of {job.pair} on {job.task}"


def _lock(job: Job, output: Path) -> FileLock:
    folder = job.folder(output)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{job.task}.lock"))
