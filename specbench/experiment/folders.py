"""Run folders: choosing one, reading its files, and comparing a run with a plan."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from specbench.config import TRUSTED, Group, Loading, Settings
from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.configuration import Configuration, Environment, read_object
from specbench.files import PARTIAL, find_stored, require_plain, stored
from specbench.pairs.registry import ROLES, PairSpec, custom_pair, pairs
from specbench.runs.folders import require_in_runs
from specbench.runs.records import (
    EXAMPLES,
    RECORDS,
    TABLE,
    latest_records,
    read_examples,
    read_records,
)
from specbench.words import shown

RESULTS = Path("results")
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
LOCK = ".lock"

COMPLETE = "complete"
# Keys that may differ between a run and the plan that resumes it: remarks, and keys that may grow.
_REMARKS = {"notes", "progress", "sources"}
_ABSENT = object()  # differs from null, which is an option that was not given
_GROWING = {*_REMARKS, "samples_planned", "examples", "cells", "tasks"}
# Keys of the environment that differ between any two runs.
_VARYING = {
    *("command", "warm_ups", "first_prompts", "gpu_states", "gpus_at_the_end"),
    "compared_with_eager",
}
_MACHINE = ("platform", "cpu", "torch.threads", "torch.gpus")  # facts that affect times


class Trust(NamedTuple):
    """What the user permits of a run that may come from anyone."""

    pair: PairSpec | None = None  # the run's models, if they are not bundled
    loading: Loading = Loading()  # ``TRUSTED`` is taken from here


NOTHING_TRUSTED = Trust()


class Difference(NamedTuple):
    """A difference between two configurations."""

    name: str  # path of the key, separated by dots
    first: Any
    second: Any


@dataclass(frozen=True)
class Run:
    """The files of a run, each read on first access."""

    folder: Path
    config: dict[str, Any]
    trust: Trust = NOTHING_TRUSTED

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The content of ``environment.json``; empty if it is missing."""
        return read_object(self.folder / ENVIRONMENT, Environment)[0]

    @cached_property
    def pair(self) -> PairSpec:
        """The pair, see ``pair_with``; every model is bundled or named by the user."""
        return self.pair_with(*ROLES)

    def pair_with(self, *roles: str) -> PairSpec:
        """Return the pair; bundled models are located in this installation of specbench.

        Raises:
            UsageError: The run does not name its models, or a model of these roles is neither
                bundled nor named by the user.
        """
        recorded = self.config.get("pair")
        if not isinstance(recorded, dict) or not isinstance(recorded.get("target"), str):
            raise UsageError(
                f"{self.folder / CONFIG} names no pair: give the folder of another run"
            )
        models = {role: recorded[role] for role in ROLES if isinstance(recorded.get(role), str)}
        for spec in pairs().values():
            bundled = {role for role in models if _end(spec.models[role]) == _end(models[role])}
            if spec.bundled and bundled and bundled >= {*models} & {*roles}:
                whole = bundled == {*ROLES}
                return spec if whole else replace(spec, draft=models.get("draft"), heads=None)
        if self.trust.pair is not None:
            return self.trust.pair
        if roles:
            raise UsageError(
                f"the models of {self.folder} ({', '.join(map(shown, models.values()))}) are not "
                "bundled, and a run may name any: to load them, name them with --pair, or with "
                "--target and --draft"
            )
        return custom_pair(models["target"], models.get("draft"))

    @property
    def loading(self) -> Loading:
        """How the models were loaded; permissions and revisions are the user's, not the run's."""
        recorded = self._options("loading", Loading)
        return recorded.updated(**{name: getattr(self.trust.loading, name) for name in TRUSTED})

    @property
    def settings(self) -> Settings:
        """The settings shared by all cells."""
        return self._options("settings", Settings)

    def _options(self, name: str, kind: type[Group]) -> Group:
        """Return recorded options, ignoring those of other versions that no longer exist."""
        recorded = self.config.get(name)
        values = recorded if isinstance(recorded, dict) else {}
        return kind(**{name: value for name, value in values.items() if name in kind.model_fields})

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """The tasks in ``config.json``, by name."""
        recorded = self.config.get("tasks")
        whole = [t for t in recorded if isinstance(t, dict)] if isinstance(recorded, list) else []
        return {task["name"]: task for task in whole if isinstance(task.get("name"), str)}

    @property
    def progress(self) -> dict[str, Any]:
        """``state`` and the numbers of ``samples`` and ``failed``; empty if unknown."""
        recorded = self.config.get("progress")
        if not isinstance(recorded, dict) or not {"state", "samples"} <= recorded.keys():
            return {}
        return recorded if {"samples_planned", "tasks"} <= self.config.keys() else {}

    @cached_property
    def examples(self) -> dict[str, dict[str, Example]]:
        """The examples by task and id, see ``read_examples``."""
        return read_examples(self.folder)

    def records(self, needed: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return one record per sample in the order of the plan, see ``latest_records``."""
        return latest_records(self.folder, needed)


def read_run(folder: Path, trust: Trust = NOTHING_TRUSTED, *, required: bool = True) -> Run:
    """Read a run's folder.

    Raises:
        UsageError: It has links out of it, or no readable ``config.json`` although ``required``;
            without ``required`` the configuration is then empty.
    """
    require_plain(folder)
    path = folder / CONFIG
    config, wrong = read_object(path, Configuration)
    if wrong and required:
        if (folder / RECORDS).is_file():
            raise UsageError(
                f"{path} {wrong}: run the command of this run again with --output {folder}, which "
                "rebuilds it from the samples"
            )
        raise UsageError(f"{folder} is not a run folder, {path} {wrong}: give the folder of a run")
    return Run(folder, config, trust)


def require_cells(folders: Iterable[Path], chosen: Mapping[str, Collection[object]]) -> None:
    """Refuse values that no cell of the runs has in these columns, before any table is read.

    The tables are left to decide if a run does not say which cells it has.
    """
    cells: list[dict[str, Any]] = []
    for folder in folders:
        tasks = read_run(folder, required=False).tasks
        described = [
            {**cell, "task": name} for name, task in tasks.items() for cell in task.get("cells", ())
        ]
        if not described:
            return
        cells += described
    for column, values in chosen.items():
        present = dict.fromkeys(str(cell[column]) for cell in cells if cell[column])
        require_in_runs(column, values, list(present))


def as_json(value: Mapping[str, Any]) -> str:
    """Format values as the content of a JSON file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def new_folder(label: str) -> Path:
    """Return an unused path ``results/<UTC time>-<label>``."""
    return unused(RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{_portable(label)}")


def choose_folder(output: Path | None, label: str) -> Path:
    """Return the folder to write: the user's, or ``results/<time>-<label>``.

    Raises:
        UsageError: It is a file or a non-empty folder.
    """
    folder = output or new_folder(label)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: choose another one with --output")
    return folder


def unused(folder: Path) -> Path:
    """Return the folder, or the first of ``folder-2``, ``folder-3`` ... that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], numbered) if not path.exists())


def newest_run() -> Path:
    """Return the run under ``results/`` with the newest table, or raise ``UsageError``."""
    tables = find_stored(RESULTS, TABLE)
    if not tables:
        raise UsageError(
            f"there is no run under {RESULTS}: give a run folder, or start with `specbench run`"
        )
    return max(tables, key=lambda path: path.stat().st_mtime).parent


def unfinished(folder: Path) -> str | None:
    """Describe the state of an incomplete run; None for a complete or unknown one."""
    run = read_run(folder, required=False)
    progress = run.progress
    if not progress or progress["state"] == COMPLETE:
        return None
    planned = run.config["samples_planned"]
    return f"{progress['state']}, {progress['samples']} of {planned} samples"


def unfinished_twins(label: str, config: Mapping[str, Any]) -> Iterator[Path]:
    """Yield unfinished runs of the same plan under ``results/``, newest first."""
    for folder in sorted(RESULTS.glob(f"*-{_portable(label)}*"), reverse=True):
        if unfinished(folder) and same_plan(read_run(folder).config, config):
            yield folder


def same_plan(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether the configuration of a run on disk matches that of a plan."""
    return not any(_differences(recorded, json.loads(as_json(config)), _REMARKS))


def run_differences(first: Run, second: Run) -> list[Difference]:
    """Return the settings, tasks and facts of the environment that two runs do not share.

    Cells and numbers of examples are left out, and so are facts that only one run has.
    """
    names = first.tasks.keys() & second.tasks.keys()

    def facts(run: Run) -> dict[str, Any]:
        tasks = {name: task for name, task in run.tasks.items() if name in names}
        return {**run.config, "tasks": tasks, "environment": run.environment}

    ignored = _GROWING - {"tasks", "sources"} | _VARYING
    differences = _differences(facts(first), facts(second), ignored, absent=_ABSENT)
    return [difference for difference in differences if _ABSENT not in difference[1:]]


def why_untimed(first: Run, second: Run) -> str | None:
    """Return why the times of two runs cannot be compared, or None if they can."""
    environments = first.environment, second.environment
    if not all(environments):
        return f"a run has no {ENVIRONMENT}"
    differences = _differences(*environments, set())
    if any(difference.name.startswith(_MACHINE) for difference in differences):
        return "they were measured on different machines"
    days = [str(environment.get("started"))[: len("2026-01-01")] for environment in environments]
    return None if days[0] == days[1] else f"they were measured on {days[0]} and {days[1]}"


def require_same_run(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that a folder is empty or contains a run that the plan may resume.

    The plan may have more examples, cells and tasks than the run; everything else must be equal.
    If only the configuration is lost, the store compares the plan with the samples.

    Raises:
        UsageError: The folder contains something else.
    """
    run = read_run(folder, required=False)
    if not run.config and _lacks_only_config(folder):
        return
    if not run.progress:
        raise UsageError(
            f"{folder} is not empty and contains no run: choose another folder with --output"
        )
    if stored(folder / TABLE).exists() and not (folder / RECORDS).exists():
        raise UsageError(
            f"{folder} contains the tables of a run without its {RECORDS}: unpack it, or choose "
            "another folder with --output"
        )
    requested = json.loads(as_json(config))
    difference = next(map(_stated, _differences(run.config, requested, _GROWING)), None)
    difference = difference or _lost_work(run, requested)
    if difference is not None:
        raise UsageError(
            f"{folder} contains another run ({difference}): choose another folder with --output, "
            "or rename that run with --fresh"
        )


def _lacks_only_config(folder: Path) -> bool:
    """Return whether a folder contains samples of a run, or nothing that anybody would miss.

    A run that was killed at its start leaves a lock, and files without samples.
    """
    names = {path.name for path in folder.iterdir() if not path.name.endswith(PARTIAL)}
    if RECORDS in names:
        return next(read_records(folder / RECORDS, damaged=[]), None) is not None
    return not names or (LOCK in names and names <= {LOCK, CONFIG, ENVIRONMENT, EXAMPLES})


def _differences(
    first: Any, second: Any, ignored: set[str], name: str = "", absent: Any = None
) -> Iterator[Difference]:
    """Yield the differences between two configurations, apart from the keys in ``ignored``.

    ``absent`` is the value of a key that only one of them has.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [key for key in {**first, **second} if key not in ignored]:
            key_path = f"{name}.{key}" if name else key
            values = first.get(key, absent), second.get(key, absent)
            yield from _differences(*values, ignored, key_path, absent)
    elif first != second:
        yield Difference(name, first, second)


def _stated(difference: Difference) -> str:
    name, recorded, requested = difference
    return f"{name} is {json.dumps(recorded)} there but {json.dumps(requested)} here"


def _lost_work(run: Run, config: Mapping[str, Any]) -> str | None:
    """Describe work of a run that the plan lacks, or return None."""
    tasks = {task["name"]: task for task in config["tasks"]}
    for name, task in run.tasks.items():
        if name not in tasks:
            return f"it includes the task {name}"
        now = tasks[name]
        for difference in _differences(task, now, _GROWING, name):
            return _stated(difference)
        if task["examples"] > now["examples"]:
            return f"it has {task['examples']} examples of {name}, more than requested"
        for cell in task["cells"]:
            if cell not in now["cells"]:
                return f"it has {cell['method']} on {name} with settings that are not requested"
    return None


def _portable(label: str) -> str:
    """Make a label a valid file name: a pair may be called ``pairs.toml:name``."""
    return re.sub(r"[^\w.+-]+", "-", label)


def _end(path: str) -> tuple[str, ...]:
    """Return the part of a model's path that does not depend on the installation."""
    return Path(path).parts[-3:]
