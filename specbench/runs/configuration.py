"""The types of ``config.json`` and ``environment.json``, since a run may come from anyone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

DEEPEST = 20  # nested objects and lists
LARGEST = 2**26  # bytes

_Count = Annotated[int, Field(ge=0, le=10**12)]
_Text = Annotated[str, Field(max_length=10_000)]


class _Section(BaseModel):
    """An object with known keys, all optional, and any others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Head(_Section):
    name: _Text


class _Cell(_Section):
    method: _Text
    draft_length: _Count
    drafter: _Text = ""
    session: _Count = 0
    timing: _Text = ""
    server: bool = False
    head: _Head | None = None


class _Task(_Section):
    name: _Text
    version: _Text = ""
    metrics: list[_Text] = []
    prompt_format: _Text = ""
    data: dict[str, Any] = {}
    stop: list[_Text] = []
    max_new_tokens: _Count = 0
    examples: _Count = 0
    cells: list[_Cell] = []


class _Pair(_Section):
    name: _Text | None = None
    target: _Text | None = None
    draft: _Text | None = None


class _Server(_Section):
    name: _Text
    model: _Text = ""
    prompts: _Text = ""


class _Progress(_Section):
    state: _Text = ""
    samples: _Count = 0
    failed: _Count = 0


class Configuration(_Section):
    """The content of ``config.json``."""

    pair: _Pair = _Pair()
    loading: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    servers: list[_Server] = []
    samples_planned: _Count = 0
    tasks: list[_Task] = []
    notes: list[_Text] = []
    progress: _Progress = _Progress()
    sources: dict[str, _Text] = {}


class _Named(_Section):
    name: _Text | None = None


class _Torch(_Section):
    gpus: list[_Named] = []


class _Processor(_Section):
    model: _Text | None = None


class _GreedyTexts(_Section):
    task: _Text
    method: _Text
    alone: _Text
    lossless: bool | None
    texts: _Count
    equal: _Count
    forks: _Count
    margins: list[float]
    beyond: _Count


class Environment(_Section):
    """The content of ``environment.json``."""

    command: list[_Text] = []
    models: dict[str, Any] = {}
    weights: dict[str, dict[str, Any]] = {}
    prompt_formats: dict[str, _Text] = {}
    packages: dict[str, Any] = {}
    git: dict[str, Any] = {}
    cpu: _Processor = _Processor()
    torch: _Torch = _Torch()
    servers: dict[str, dict[str, Any]] = {}
    greedy_texts: list[_GreedyTexts] = []


def read_object(path: Path, kind: type[_Section]) -> tuple[dict[str, Any], str]:
    """Return the object in a JSON file and an empty text, or ``{}`` and what is wrong with it."""
    try:
        if path.stat().st_size > LARGEST:
            return {}, f"is larger than {LARGEST:,} bytes"
        values = json.loads(path.read_bytes())
        json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
        kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return {}, f"has a wrong `{'.'.join(map(str, first['loc']))}` ({first['msg']})"
    except (OSError, ValueError, RecursionError):
        return {}, "is not the configuration of a run" if path.is_file() else "does not exist"
    if _deeper(values, DEEPEST):
        return {}, f"has more than {DEEPEST} nested levels"
    return values, ""


def _deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(element, levels - 1) for element in inner)
