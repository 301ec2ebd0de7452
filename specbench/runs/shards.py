"""Runs in several folders, each with a shard of the prompts: read as one, and what is missing."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import open_text, stored
from specbench.runs.folders import is_sharded, run_folders
from specbench.runs.records import SUMMARY, TABLE
from specbench.runs.run import COMPLETE, Run, read_run, unfinished

_SUMS = ("texts", "equal", "forks", "beyond", "margins")  # of greedy texts


def run_name(folder: Path) -> str:
    """Return the run's name from its tables; it survives copying or renaming the folder."""
    try:
        with open_text(stored(folder / TABLE)) as file:
            return next(csv.DictReader(file))["run_id"]
    except (OSError, EOFError, ValueError, StopIteration, KeyError):
        return folder.name


def by_name(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the folders of each run; only shards share a name."""
    folders_by_name: dict[str, list[Path]] = {}
    for folder in folders:
        folders_by_name.setdefault(run_name(folder), []).append(folder)
    return folders_by_name


def summarised_folders(paths: Sequence[Path | str]) -> list[Path]:
    """Return the folders of runs with a summary, and all shards, which are summarised together.

    Raises:
        UsageError: A path has no summary in it or one level below, and no shard.
    """
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
        slices = {folder: part for folder in parts if (part := _slice(folder)) is not None}
        count = max((part.step for part in slices.values()), default=0)
        ended = [part for folder, part in slices.items() if not unfinished(folder)]
        done = {n for part in ended if count % part.step == 0 for n in range(count)[part]}
        if missing := [f"{n + 1}/{count}" for n in range(count) if n not in done]:
            *first, last = missing
            numbers = f"{', '.join(first)} and {last}" if first else last
            shards, are = ("shards", "are") if first else ("shard", "is")
            yield f"{shards} {numbers} of {name} {are} missing or unfinished"


def _slice(folder: Path) -> slice | None:
    """Return the prompts of a folder's shard; None if it does not say which one it is."""
    try:
        settings = read_run(folder, required=False).settings
    except UsageError:
        return None
    return settings.shard_slice if settings.shard is not None else None


@dataclass(frozen=True)
class ShardedRun(Run):
    """A run in several folders; what its shards have in common is that of the first."""

    shards: Sequence[Run] = ()

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The environment of the first shard, with the greedy texts of all."""
        cells = [cell for run in self.shards for cell in run.environment.get("greedy_texts", ())]
        return {**self.shards[0].environment, "greedy_texts": _added(cells)}


def whole_run(runs: Sequence[Run]) -> Run:
    """Return a run with the examples, states, failures and greedy texts of all its shards."""
    first, *others = runs
    if not others:
        return first
    tasks = {
        name: {**task, "examples": sum(run.tasks.get(name, {}).get("examples", 0) for run in runs)}
        for run in reversed(runs)
        for name, task in run.tasks.items()
    }
    parts = [run.progress for run in runs]
    states = [part.get("state", "unknown") for part in parts]
    progress = {
        "state": next((state for state in states if state != COMPLETE), COMPLETE),
        **{name: sum(part.get(name, 0) for part in parts) for name in ("samples", "failed")},
    }
    planned = sum(run.config.get("samples_planned", 0) for run in runs)
    config = {"tasks": [*tasks.values()], "progress": progress, "samples_planned": planned}
    return ShardedRun(first.folder, {**first.config, **config}, first.trust, runs)


def _added(greedy: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the greedy texts of each method."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in greedy:
        key = tuple(cell[name] for name in ("task", "method", "alone"))
        before = sums.get(key)
        added = {} if before is None else {name: before[name] + cell[name] for name in _SUMS}
        sums[key] = {**cell, **added}
    return list(sums.values())
