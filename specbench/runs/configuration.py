"""The settings of a run, and the types of its ``config.json`` and ``environment.json``.

A run may come from anyone, so these files are checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from specbench.config import AUTO, EngineName, Options, SamplingOptions, Seeded, option

DEEPEST = 20  # nested objects and lists
LARGEST = 2**26  # bytes

DEFAULT_LIMIT = 20  # examples per task; shows the effect, and is fast on two CPU cores
_SHARD = re.compile(r"([1-9]\d{0,2})/([1-9]\d{0,2})")  # I/N

_Count = Annotated[int, Field(ge=0, le=10**12)]
_Text = Annotated[str, Field(max_length=2**20)]


class Settings(Seeded, SamplingOptions):
    """Settings shared by all cells of a run."""

    repeats: int = option(1, "Times to decode each example, with new random numbers.", ge=1)
    max_new_tokens: int | None = option(
        None, "Maximum length of an answer.", ge=1, shown="the task's own", panel=Options.panel
    )
    max_prompt_tokens: int | None = option(
        None, "Length to which the article of a prompt is cut.", ge=1, shown="the models' context"
    )
    prompt_format: Literal["chat", "plain"] | None = option(
        None, "chat, by the model's template, or plain.", metavar="FORMAT", shown="the task's own"
    )
    engine: EngineName = option(
        AUTO,
        "eager; graph, by CUDA graphs; compile, which takes minutes per method at first; llamacpp, "
        "for GGUF files; auto, graph on a GPU if it works, else eager.",
        metavar="NAME",
    )
    batch_size: int = option(1, "Texts per batch; rounding may change a text.", ge=1, metavar="B")

    refill: int | None = option(
        None,
        "Decode K batches as one: the next prompt takes an ended text's row. Gives no times.",
        ge=2,
        shown="one",
        metavar="K",
    )

    shard: str | None = option(
        None,
        "Use every N-th prompt (of `train`: task) from the I-th only; N such runs in N folders are "
        "read as one.",
        metavar="I/N",
        shown="all",
        panel="Workers",
    )

    @field_validator("shard")
    @classmethod
    def _one_of_all(cls, shard: str | None) -> str | None:
        match = _SHARD.fullmatch("1/1" if shard is None else shard)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"must be I/N with I from 1 to N, not {shard}")
        return shard

    @property
    def shard_slice(self) -> slice:
        """The prompts of the shard: every N-th from the I-th; all without one."""
        number, count = map(int, (self.shard or "1/1").split("/"))
        return slice(number - 1, None, count)


class Section(BaseModel):
    """An object with known keys, all optional, and any others, such as those of other versions."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    def plain(self) -> dict[str, Any]:
        """Return the object as it was written, in plain values."""
        return self.model_dump(exclude_unset=True)


class HeadConfig(Section):
    """A head, with further facts of its file."""

    name: _Text
    path: _Text = ""


class CellConfig(Section):
    """A cell; its further keys are the parameters of the method."""

    method: _Text
    draft_length: _Count
    drafter: _Text = ""
    session: _Count = 0
    timing: _Text = ""
    server: bool = False
    engine: _Text = ""
    head: HeadConfig | None = None


class TaskConfig(Section):
    """A task, and the cells that decoded its examples."""

    name: _Text
    version: _Text = ""
    metrics: list[_Text] | None = None
    prompt_format: _Text | None = None
    data: dict[str, Any] = {}
    stop: list[_Text] = []
    max_new_tokens: _Count = 0
    examples: _Count = 0
    batch_size: _Count = 0
    cells: list[CellConfig] = []


class PairConfig(Section):
    """The models of a run."""

    name: _Text | None = None
    target: _Text | None = None
    draft: _Text | None = None


class ServerConfig(Section):
    """A server that decoded some of the texts."""

    name: _Text
    model: _Text = ""
    prompts: _Text = ""


class RunProgress(Section):
    """How far a run is; ``state`` is empty if that is not recorded."""

    state: _Text = ""
    samples: _Count = 0
    failed: _Count = 0


class RunConfig(Section):
    """The content of ``config.json``."""

    specbench: _Text = ""
    pair: PairConfig = PairConfig()
    loading: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    servers: list[ServerConfig] = []
    samples_planned: _Count | None = None
    tasks: list[TaskConfig] | None = None
    notes: list[_Text] = []
    progress: RunProgress = RunProgress()
    sources: dict[str, _Text] = {}


class Named(Section):
    """A device."""

    name: _Text | None = None


class TorchFacts(Section):
    """What PyTorch tells of the machine."""

    gpus: list[Named] = []
    threads: Any = None


class Processor(Section):
    """The processor."""

    model: _Text | None = None


class GreedyFacts(Section):
    """How a method's greedy texts differ from those without speculation."""

    task: _Text
    method: _Text
    alone: _Text
    lossless: bool | None
    texts: _Count
    equal: _Count
    forks: _Count
    margins: list[float]
    beyond: _Count


class Environment(Section):
    """The content of ``environment.json``."""

    command: list[_Text] = []
    started: Any = None
    python: Any = None
    engine: Any = None
    models: dict[str, Any] = {}
    weights: dict[str, dict[str, Any]] = {}
    prompt_formats: dict[str, _Text] = {}
    packages: dict[str, Any] = {}
    git: dict[str, Any] = {}
    cpu: Processor = Processor()
    torch: TorchFacts = TorchFacts()
    servers: dict[str, dict[str, Any]] = {}
    greedy_texts: list[GreedyFacts] = []
    warm_ups: list[dict[str, Any]] = []
    copy_bandwidth: float | None = None


Kind = TypeVar("Kind", RunConfig, Environment)


def read_section(path: Path, kind: type[Kind]) -> tuple[Kind, str]:
    """Return the object in a JSON file and an empty text, or an empty one and what is wrong."""
    try:
        if path.stat().st_size > LARGEST:
            return kind(), f"is larger than {LARGEST:,} bytes"
        values = json.loads(path.read_bytes())
        json.dumps(values, allow_nan=False, ensure_ascii=False).encode()  # or refuse it
        if deeper(values, DEEPEST):
            return kind(), f"has more than {DEEPEST} nested levels"
        return kind.model_validate(values), ""
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:
            return kind(), "is not the configuration of a run"
        return kind(), f"has a wrong `{'.'.join(map(str, first['loc']))}` ({first['msg']})"
    except (OSError, ValueError, RecursionError):
        is_there = os.path.exists(path)
        return kind(), "is not the configuration of a run" if is_there else "does not exist"


def version_numbers(version: str) -> list[int]:
    """Return the numbers of a version, such as [0, 1, 0]; later parts of it do not count."""
    return [int(part) for part in re.findall(r"\d{1,9}", version.partition("+")[0])[:3]]


def deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more than so many nested objects and lists."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(deeper(element, levels - 1) for element in inner)


class Difference(NamedTuple):
    """A difference between two configurations."""

    name: str  # path of the key, separated by dots
    first: Any
    second: Any


def differences_of(
    first: Any, second: Any, ignored: set[str], name: str = "", absent: Any = None
) -> Iterator[Difference]:
    """Yield differences but for ``ignored`` keys; ``absent`` stands for a key that one lacks."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [key for key in {**first, **second} if key not in ignored]:
            key_path = f"{name}.{key}" if name else key
            values = first.get(key, absent), second.get(key, absent)
            yield from differences_of(*values, ignored, key_path, absent)
    elif first != second:
        yield Difference(name, first, second)
