"""Runs in several folders, each with some of the prompts: the shards of a run share its name."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specbench.errors import UsageError
from specbench.files import open_text, stored
from specbench.runs.configuration import Environment, GreedyFacts, RunProgress
from specbench.runs.records import SUMMARY, TABLE
from specbench.runs.run import COMPLETE, Run, read_run, run_folders, unfinished

# The name of a run that is in several folders, each with some of its prompts, and its digits.
SHARDS, DIGEST_LENGTH = "shards-", 8
_OF_SHARDS = re.compile(rf"{SHARDS}[0-9a-f]{{{DIGEST_LENGTH}}}")
_SUMS = ("texts", "equal", "forks", "beyond", "margins")  # of greedy texts


def is_sharded(run_id: str) -> bool:
    """Return whether a run's name is one that shards share."""
    return _OF_SHARDS.fullmatch(run_id) is not None


def run_name(folder: Path) -> str:
    """Return the run's name from its tables; it survives copying or renaming the folder."""
    try:
        with open_text(stored(folder / TABLE)) as file:
            return next(csv.DictReader(file))["run_id"] or folder.name
    except (OSError, EOFError, ValueError, StopIteration, KeyError, csv.Error):
        return folder.name


def by_name(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the folders of each run; only shards share a name."""
    folders_by_name: dict[str, list[Path]] = {}
    for folder in folders:
        folders_by_name.setdefault(run_name(folder), []).append(folder)
    return folders_by_name


def summarised_folders(paths: Sequence[Path | str]) -> list[Path]:
    """Return the folders of runs with a summary, and all shards, which are summarised together."""
    folders: list[Path] = []
    for path in paths:
        below = run_folders([path], SUMMARY, TABLE)
        shards = [folder for folder in below if is_sharded(run_name(folder))]
        chosen = [f for f in below if f in shards or stored(f / SUMMARY).exists()]
        folders += chosen or run_folders([path], SUMMARY)
    return list(dict.fromkeys(folders)) or run_folders(paths, SUMMARY)


def missing_shards(folders: Iterable[Path]) -> Iterator[str]:
    """Yield a sentence for each run some of whose shards are not among the folders, or ended."""
    for name, parts in by_name(folders).items():
        if not is_sharded(name):
            continue
        slices: dict[Path, slice] = {}
        for folder in parts:
            with suppress(UsageError):  # it may not say which shard it is
                settings = read_run(folder, required=False).settings
                if settings.shard is not None:
                    slices[folder] = settings.shard_slice
        count = max((part.step for part in slices.values()), default=0)
        ended = [part for folder, part in slices.items() if not unfinished(folder)]
        done = {n for part in ended if count % part.step == 0 for n in range(count)[part]}
        if missing := [f"{n + 1}/{count}" for n in range(count) if n not in done]:
            *first, last = missing
            numbers = f"{', '.join(first)} and {last}" if first else last
            shards, are = ("shards", "are") if first else ("shard", "is")
            yield f"{shards} {numbers} of {name} {are} missing or unfinished"


@dataclass(frozen=True)
class ShardedRun(Run):
    """A run in several folders; what its shards have in common is that of the first."""

    shards: Sequence[Run] = ()

    @property
    def folders(self) -> list[Path]:
        """The folders of all its shards."""
        return [shard.folder for shard in self.shards]

    @cached_property
    def environment(self) -> Environment:
        """The environment of the first shard, with the greedy texts of all."""
        sums: dict[tuple[str, ...], GreedyFacts] = {}
        for cell in (cell for run in self.shards for cell in run.environment.greedy_texts):
            key = cell.task, cell.method, cell.alone
            if before := sums.get(key):
                added = {name: getattr(before, name) + getattr(cell, name) for name in _SUMS}
                cell = cell.model_copy(update=added)
            sums[key] = cell
        update = {"greedy_texts": [*sums.values()]}
        return self.shards[0].environment.model_copy(update=update)


def whole_run(runs: Sequence[Run]) -> Run:
    """Return a run with the examples, states, failures and greedy texts of all its shards."""
    first, *others = runs
    if not others:
        return first
    tasks = {
        name: task.model_copy(
            update={"examples": sum(run.tasks[name].examples for run in runs if name in run.tasks)}
        )
        for run in reversed(runs)
        for name, task in run.tasks.items()
    }
    parts = [run.progress or RunProgress(state="unknown") for run in runs]
    progress = RunProgress(
        state=next((part.state for part in parts if part.state != COMPLETE), COMPLETE),
        samples=sum(part.samples for part in parts),
        failed=sum(part.failed for part in parts),
    )
    planned = sum(run.config.samples_planned or 0 for run in runs)
    changes = {"tasks": [*tasks.values()], "progress": progress, "samples_planned": planned}
    return ShardedRun(first.folder, first.config.model_copy(update=changes), first.trust, runs)
