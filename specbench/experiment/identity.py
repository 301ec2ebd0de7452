"""The identity of a sample: a digest of all that its text depends on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from specbench import __version__
from specbench.config import AUTO, COMPILE, EAGER, GRAPH
from specbench.decoding.drafters.registry import MODEL
from specbench.experiment.plan import Plan, Step
from specbench.plugins import content_digest

# Settings of the whole run that do not affect any single sample.
_ABOUT_THE_RUN = {"repeats", "engine", "shard"}

Key = Callable[[Step], str]


def sample_keys(plan: Plan, models: Mapping[str, Any], engine: str) -> Key:
    """Return a function that hashes everything that determines a sample.

    Two samples have the same key if they have the same prompt, models, method, settings, engine,
    metrics and package version. ``models`` are the values from ``SampleRunner.models``. ``engine``
    is the one at the start; the record's column names the engine that decoded the sample.
    """
    unused = {"min_p"} if plan.settings.min_p is None else set()  # absent in older keys
    falls_back = plan.settings.engine == AUTO and engine in (GRAPH, COMPILE)
    shared = {
        "specbench": __version__,
        "models": models,
        "engine": f"{engine}, else {EAGER}" if falls_back else engine,
        "may_execute": plan.may_execute,
        "settings": plan.settings.model_dump(exclude=_ABOUT_THE_RUN | unused),
    }

    bodies = {arm.name: dict(arm.body) for arm in plan.arms}

    def key(step: Step) -> str:
        task = step.plan.task
        identity = {
            **shared,
            "task": [task.name, task.version, list(task.metrics), list(task.stop)],
            "prompt_format": task.prompt_format,
            "max_new_tokens": step.plan.max_new_tokens,
            "example": step.example.identity(),
            "method": step.cell.method,
            "parameters": step.cell.values_with(lambda head: [head.name, _content(head.path)]),
            "draft_length": step.cell.draft_length,
            "repeat": step.repeat,
            **({"engine": step.cell.engine} if step.cell.engine else {}),
            **({} if step.cell.drafter == MODEL else {"drafter": str(step.cell.drafter)}),
        }
        if files := step.cell.drafter.kind.files(plan.pair.drafters):
            identity["drafter"] = [str(step.cell.drafter), *map(_content, files)]
        identity |= {"turn": step.turn} if step.turn else {}
        if body := bodies.get(step.cell.method):
            identity["body"] = body
        if step.cell.timing:
            identity["timing"] = [step.cell.timing, step.cell.session]
        if sources := plan.sources_of(step):
            identity["sources"] = sources
        return content_digest(json.dumps(identity, sort_keys=True, ensure_ascii=False).encode())

    return key


@cache
def _content(path: Path) -> str:
    """Return a digest of a head's files."""
    files = sorted(path.glob("head.*")) if path.is_dir() else [path]
    contents = (f.name.encode() + b"\0" + f.read_bytes() for f in files if f.is_file())
    return content_digest(b"".join(contents))
