"""Folders to write runs to: choosing one, and comparing the run in it with a plan."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from specbench.engine.pairs import bundled_path
from specbench.errors import UsageError
from specbench.files import PARTIAL, stored
from specbench.runs.configuration import Difference, differences_of
from specbench.runs.records import EXAMPLES, RECORDS, TABLE, read_records
from specbench.runs.run import CONFIG, ENVIRONMENT, RESULTS, Run, read_run, unfinished
from specbench.runs.running import LOCK
from specbench.runs.shards import DIGEST_LENGTH, SHARDS

# Keys that may differ between a run and the plan that resumes it: remarks, an option of earlier
# versions that changed no sample, keys that may grow, and where a file of known content lies.
_REMARKS = {"notes", "progress", "sources", "engine_fallback"}
_GROWING = {*_REMARKS, "samples_planned", "examples", "cells", "tasks", "file"}
# Keys that may differ between the shards of a run: their parts, and where machines have what.
_OF_A_SHARD = {"notes", "progress", "shard", "samples_planned", "examples"}
_PLACES = {"device", "device_map", "path", "file", "url"}
_MODELS = {"target", "draft", "model"}  # of which the last part of a path is the name


def as_json(value: Mapping[str, Any]) -> str:
    """Format values as the content of a JSON file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def new_folder(label: str) -> Path:
    """Return an unused path ``results/<UTC time>-<label>``."""
    return unused(RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{_portable(label)}")


def unused(folder: Path) -> Path:
    """Return the folder, or the first of ``folder-2``, ``folder-3`` ... that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in chain([folder], numbered) if not path.exists())


def unfinished_twins(label: str, config: Mapping[str, Any]) -> Iterator[Path]:
    """Yield runs in ``results/`` of the same plan that can go on or retry, newest first."""
    requested = json.loads(as_json(config))
    for folder in sorted(RESULTS.glob(f"*-{_portable(label)}*"), reverse=True):
        with suppress(UsageError):  # of another version, or damaged
            recorded = read_run(folder)
            has_failed = recorded.progress is not None and recorded.progress.failed > 0
            planned = recorded.config.plain()
            is_open = has_failed or unfinished(folder)
            if is_open and not any(differences_of(planned, requested, _REMARKS)):
                yield folder


def run_id(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the name of a new run: that of its folder, or one that all its shards share."""
    if config.get("settings", {}).get("shard") is None:
        return folder.absolute().name
    whole = {**config, "sources": sorted(config.get("sources", {}).values())}  # digests
    digest = hashlib.sha256(as_json(_identity(whole)).encode()).hexdigest()
    return f"{SHARDS}{digest[:DIGEST_LENGTH]}"


def _identity(value: Any) -> Any:
    """Return what all shards of a run have in common, on any machine."""
    if isinstance(value, Mapping):
        common = {key: v for key, v in value.items() if key not in _OF_A_SHARD | _PLACES}
        last_parts = {key: Path(common[key]).name for key in _MODELS & common.keys() if common[key]}
        return {key: last_parts.get(key) or _identity(v) for key, v in common.items()}
    return [*map(_identity, value)] if isinstance(value, list) else value


def require_same_run(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that a folder is empty or contains a run that the plan may resume.

    The plan may have more examples, cells and tasks than the run; everything else must be equal.
    If only the configuration is lost, the store compares the plan with the samples.
    """
    run = run_in(folder)
    if run is None:
        return
    has_samples = any(stored(folder / name).exists() for name in (TABLE, RECORDS))
    if has_samples and not (folder / RECORDS).exists():
        raise UsageError(
            f"{folder} contains a run without its {RECORDS}: unpack it, or choose another folder "
            "with --output"
        )
    requested = json.loads(as_json(config))
    recorded = run.config.plain()
    for config_of in (recorded, requested):
        models = config_of.get("pair", {})
        models |= {role: bundled_path(models[role]) for role in _MODELS if models.get(role)}
    difference = next(map(_stated, differences_of(recorded, requested, _GROWING)), None)
    difference = difference or _lost_work(run, requested)
    if difference is not None:
        raise UsageError(
            f"{folder} contains another run ({difference}): choose another folder with --output, "
            "or rename that run with --fresh"
        )


def run_in(folder: Path) -> Run | None:
    """Return the run in a folder; None if it is empty, or has samples without a configuration."""
    run = read_run(folder, required=False)
    if not run.config.model_fields_set:
        names = {path.name for path in folder.iterdir() if not path.name.endswith(PARTIAL)}
        # A run that was killed at its start leaves a lock, and files without samples.
        leftovers = not names or (LOCK in names and names <= {LOCK, CONFIG, ENVIRONMENT, EXAMPLES})
        if RECORDS in names:
            leftovers = next(read_records(folder / RECORDS, damaged=[]), None) is not None
        if leftovers:
            return None
    if not run.progress:
        raise UsageError(
            f"{folder} is not empty and contains no run: choose another folder with --output"
        )
    return run


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
        for difference in differences_of(task.plain(), now, _GROWING, name):
            return _stated(difference)
        if task.examples > now["examples"]:
            return f"it has {task.examples} examples of {name}, more than requested"
        for cell in task.cells:
            # A head counts by its content, which is in the keys of its samples.
            if all(any(differences_of(cell.plain(), one, {"path"})) for one in now["cells"]):
                return f"it has {cell.method} on {name} with settings that are not requested"
    return None


def _portable(label: str) -> str:
    """Make a label a valid file name: a pair may be called ``pairs.toml:name``."""
    return re.sub(r"[^\w.+-]+", "-", label)
