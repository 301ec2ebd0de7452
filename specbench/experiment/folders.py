"""The folders of runs: where they are, whose they are, and which of them are unfinished."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.experiment.records import RECORDS
from specbench.experiment.tables import TABLE

RESULTS = Path("results")
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
LOCK = ".lock"

COMPLETE = "complete"
# What two plans of one run need not share: what is said of them, and how far they go.
_SAID = {"notes", "progress"}
_GROWING = {*_SAID, "samples_planned", "examples", "cells", "tasks"}


def as_json(value: Mapping[str, Any]) -> str:
    """Return what a JSON file of a run holds."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def new_folder(label: str) -> Path:
    """Return ``results/<UTC time>-<label>``, which does not exist yet."""
    return unused(RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{_portable(label)}")


def _portable(label: str) -> str:
    """Return a label as any file system takes it: a pair may be called ``pairs.toml:name``."""
    return re.sub(r"[^\w.+-]+", "-", label)


def choose_folder(output: Path | None, label: str) -> Path:
    """Return the folder to write, which is empty or not there.

    Args:
        output: What the user asked for; None takes ``results/<time>-<label>``.
        label: Ends the name of a folder that nobody named.

    Raises:
        UsageError: It is a file, or not empty.
    """
    folder = output or new_folder(label)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder: name another one with --output")
    return folder


def unused(folder: Path) -> Path:
    """Return the folder, or the first of ``folder-2``, ``folder-3`` ... that does not exist."""
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def newest_run(root: Path = RESULTS) -> Path:
    """Return the run under ``root`` whose table was written last.

    Raises:
        UsageError: There is none.
    """
    tables = sorted(root.glob(f"*/{TABLE}"), key=lambda path: path.stat().st_mtime)
    if not tables:
        raise UsageError(f"there is no run under {root}: name a run's folder, or start with a run")
    return tables[-1].parent


def unfinished(folder: Path) -> str | None:
    """Return how a run that is not complete ended, in words; None for a complete one."""
    config = read_config(folder)
    # Tables without a readable configuration still speak for themselves.
    if config is None or config["progress"]["state"] == COMPLETE:
        return None
    progress = config["progress"]
    return f"{progress['state']}, {progress['samples']} of {config['samples_planned']} samples"


def unfinished_twins(label: str, config: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the folders under ``results/`` of unfinished runs of the very same plan, newest first.

    Args:
        label: What the folders' names end in.
        config: The plan's configuration.
    """
    for folder in sorted(RESULTS.glob(f"*-{_portable(label)}*"), reverse=True):
        known = read_config(folder)
        if known is None or known["progress"]["state"] == COMPLETE:
            continue
        if same_plan(known, config):
            yield folder


def same_plan(known: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Tell whether the configuration of a run on disk is that of a plan."""
    return not any(_differences(known, _plain(config), _SAID))


def require_same_run(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a folder that holds anything but a run that a plan may go on with.

    A plan may have more examples, cells and tasks than the run; all else must be alike.

    Raises:
        UsageError: The folder holds something else.
    """
    if not any(path.name != LOCK for path in folder.iterdir()):
        return
    known = read_config(folder)
    if known is None:
        raise UsageError(
            f"{folder} is not empty and holds no run: name another folder with --output"
        )
    if (folder / TABLE).exists() and not (folder / RECORDS).exists():
        raise UsageError(
            f"{folder} holds the tables of a run without its {RECORDS}: unpack that, or name "
            "another folder with --output"
        )
    found = next(_differences(known, _plain(config), _GROWING), None) or _lost_task(known, config)
    if found is not None:
        raise UsageError(
            f"{folder} holds another run ({found}): name another folder with --output, or move "
            "that run aside with --fresh"
        )


def _differences(known: Any, wanted: Any, free: set[str], name: str = "") -> Iterator[str]:
    """Say what differs between two configurations, apart from what is free to."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        for key in [key for key in {**known, **wanted} if key not in free]:
            where = f"{name}.{key}" if name else key
            yield from _differences(known.get(key), wanted.get(key), free, where)
    elif known != wanted:
        yield f"{name} is {json.dumps(known)} there and {json.dumps(wanted)} here"


def _lost_task(known: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    tasks = {task["name"]: task for task in _plain(config)["tasks"]}
    for task in known["tasks"]:
        if task["name"] not in tasks:
            return f"with the task {task['name']}"
        now = tasks[task["name"]]
        for found in _differences(task, now, _GROWING, task["name"]):
            return found
        if task["examples"] > now["examples"]:
            return f"with {task['examples']} examples of {task['name']}, and here are fewer"
        for cell in task["cells"]:
            if cell not in now["cells"]:
                return f"with {cell['method']} on {task['name']} in a setting that is not here"
    return None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it is read back from its file."""
    plain: dict[str, Any] = json.loads(json.dumps(config))
    return plain


def read_config(folder: Path) -> dict[str, Any] | None:
    """Return a run's configuration, None where there is none that a run of today writes."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_bytes())
        config["progress"]["state"], config["progress"]["samples"], config["samples_planned"]
        config["tasks"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return config
