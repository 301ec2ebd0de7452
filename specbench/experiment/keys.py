"""The key of a sample: a hash of everything that decides it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from specbench.engine.settings import EAGER, GRAPH
from specbench.experiment.plan import Plan, Step
from specbench.heads.registry import HeadFile
from specbench.version import __version__

# Settings that are about the whole run and decide no single sample.
_ABOUT_THE_RUN = {"repeats", "engine", "engine_fallback"}


class Keys:
    """Names every sample of a plan by what decides it, so that a run can be gone on with.

    Two samples have the same key if they come of the same prompt, models, method, settings, engine
    and version of this package, and are scored alike.

    Args:
        plan: The plan.
        models: What identifies the loaded models and their number format, in plain values.
        engine: The engine that it begins with; the column says what decoded a sample after all.
    """

    def __init__(self, plan: Plan, models: Mapping[str, Any], engine: str) -> None:
        settings = asdict(plan.settings)
        falls_back = plan.settings.engine_fallback and engine == GRAPH
        self._shared = {
            "specbench": __version__,
            "models": models,
            "engine": f"{engine}, else {EAGER}" if falls_back else engine,
            "may_execute": plan.may_execute,
            "settings": {n: value for n, value in settings.items() if n not in _ABOUT_THE_RUN},
        }

    def of(self, step: Step) -> str:
        """Return the key of a sample, 32 hexadecimal digits."""
        task = step.plan.task
        facts = {
            **self._shared,
            "task": [task.name, task.version, list(task.metrics), list(task.stop)],
            "prompt_format": task.prompt_format,
            "max_new_tokens": step.plan.max_new_tokens,
            "example": asdict(step.example),
            "method": step.cell.method,
            "parameters": {name: _plain(value) for name, value in step.cell.parameters},
            "draft_length": step.cell.draft_length,
            "repeat": step.repeat,
        }
        text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: Any) -> Any:
    """A parameter in plain values: a head by its name and content."""
    return [value.name, _content(value.path)] if isinstance(value, HeadFile) else value


@cache
def _content(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path.glob("head.*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
