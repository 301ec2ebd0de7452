"""Where the numbers of a report come from: the environment of each run, and its command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specbench.experiment.folders import CONFIG, ENVIRONMENT

# Too long for a table, or said elsewhere on the page.
_LEFT_OUT = {"command", "first_prompts", "warm_ups"}
_OF_CONFIG = ("pair", "settings", "progress", "notes")


class Origin(NamedTuple):
    """What is known of the runs.

    Attributes:
        runs: Their names.
        facts: Name of a fact, and its value for each run, blank where unknown.
        commands: The command line of each run that is known.
    """

    runs: list[str]
    facts: list[tuple[str, list[str]]]
    commands: list[str]


def read_origin(folders: Sequence[Path]) -> Origin:
    """Return what ``config.json`` and ``environment.json`` of the runs say."""
    configs = [_read(folder / CONFIG) for folder in folders]
    environments = [_read(folder / ENVIRONMENT) for folder in folders]
    known = [
        dict(_flat({**_of(config), **_kept(environment)}))
        for config, environment in zip(configs, environments, strict=True)
    ]
    facts = dict.fromkeys(name for run in known for name in run)
    commands = [environment.get("command") for environment in environments]
    return Origin(
        runs=[folder.name for folder in folders],
        facts=[(name, [run.get(name, "") for run in known]) for name in facts],
        commands=[shlex.join(map(str, command)) for command in commands if command],
    )


def _of(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in _OF_CONFIG if name in config}


def _kept(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in _LEFT_OUT}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value of nested objects by its path; those that are null are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}, {key}" if name else str(key))
    elif isinstance(value, list):
        whole = "; ".join(v if isinstance(v, str) else json.dumps(v) for v in value)
        yield name, whole
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}  # the tables speak for themselves
    return found if isinstance(found, dict) else {}
