"""A task is one declarative TOML file: source of examples, prompt, stop strings, limit, metric."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from specbench.errors import RunError, UsageError
from specbench.metrics import get_metric
from specbench.tasks.example import Example

SPLITS = ("train", "test")
# A generator never ends. Without a limit an evaluation takes as many examples as the paper's does.
GENERATED_EXAMPLES = 100
# Distance between the indices of two seeds: different seeds never share a generated example.
SEED_STRIDE = 1_000_000

# Every key of a task file is required, and no other but a table `training` is allowed; a dot stands
# for a table.
_KEYS: dict[str, type] = {
    "name": str,
    "version": str,
    "description": str,
    "licence": str,
    "metrics": list,
    "max_new_tokens": int,
    "stop": list,
    "source.generator": str,
    "prompt.template": str,
}
_KINDS = {str: "a string", int: "an integer", list: "a list of strings"}


@dataclass(frozen=True)
class Task:
    """What to generate from and how to score it.

    Attributes:
        name: Name in commands and result files.
        version: Changes whenever scores before and after are not comparable.
        description: One line for lists.
        metrics: Keys of ``specbench.metrics.METRICS``, the one that stands for quality first; none
            measures speed and acceptance only.
        stop: Strings that end a generation when they appear.
        max_new_tokens: Limit on generated tokens.
        generator: Key of ``specbench.tasks.mini.GENERATORS``; None where ``rows`` are the source.
        path: File the task was read from.
        template: Text around the prompt, with ``{prompt}`` in its place.
        licence: Licence of the examples.
        rows: Examples in the order of their file, where there is no generator; test examples all.
        training: What differs for this task from the usual recipe of a head.
    """

    name: str
    version: str
    description: str
    metrics: tuple[str, ...]
    stop: tuple[str, ...]
    max_new_tokens: int
    generator: str | None
    path: Path
    template: str = "{prompt}"
    licence: str = ""
    rows: tuple[Example, ...] = field(default=(), repr=False)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str | None:
        """The metric that stands for quality; None where there is none."""
        return self.metrics[0] if self.metrics else None

    def examples(self, split: str, limit: int | None, seed: int = 0) -> list[Example]:
        """Return examples with their final prompts.

        Args:
            split: ``train`` or ``test``; a prompt file has the latter only.
            limit: At most this many; None takes all rows of a file, or the first
                ``GENERATED_EXAMPLES`` of a generator.
            seed: Which examples. 0 takes the first ones; another seed gives a disjoint set from a
                generator and a shuffled order from a file.

        Raises:
            UsageError: Unknown or missing split, a limit below 1, a negative seed or an unknown
                generator.
        """
        if split not in SPLITS:
            raise UsageError(f"unknown split `{split}`; choose one of {_listed(SPLITS)}")
        if split == "train" and self.generator is None:
            raise UsageError(f"{self.name} has no training split: choose a task that has one")
        if limit is not None and limit < 1:
            raise UsageError(f"the limit must be at least 1, not {limit}")
        if seed < 0:
            raise UsageError(f"the seed must be at least 0, not {seed}")
        if self.generator is None:
            chosen = self._pick(limit, seed)
        else:
            chosen = self._generate(self.generator, split, limit, seed)
        # Not str.format: a template may hold other braces, for instance those of JSON or code.
        return [replace(e, prompt=self.template.replace("{prompt}", e.prompt)) for e in chosen]

    def _generate(self, name: str, split: str, limit: int | None, seed: int) -> list[Example]:
        from specbench.tasks.mini import GENERATORS

        if name not in GENERATORS:
            raise UsageError(f"{self.path}: {_unknown('generator', name, GENERATORS)}")
        first = seed * SEED_STRIDE
        count = GENERATED_EXAMPLES if limit is None else limit
        return [GENERATORS[name](split, first + i) for i in range(count)]

    def _pick(self, limit: int | None, seed: int) -> list[Example]:
        rows = list(self.rows)
        if seed:
            random.Random(seed).shuffle(rows)
        return rows[:limit]


def definitions_folder(package: Path = Path(__file__).parent) -> Path:
    """Return the folder of the bundled task files: inside a wheel, or ``tasks/`` of a checkout."""
    packaged = package / "definitions"
    return packaged if packaged.is_dir() else package.parents[1] / "tasks"


def task_names() -> list[str]:
    """Return the names of the bundled tasks in alphabetical order.

    Raises:
        RunError: The installation has no task files.
    """
    folder = definitions_folder()
    names = sorted(path.stem for path in folder.glob("*.toml"))
    if not names:
        raise RunError(f"no task files in {folder}; install specbench again")
    return names


def load_task(name_or_path: str | Path) -> Task:
    """Load a bundled task by its name, or any task from a TOML file.

    Raises:
        UsageError: Unknown name, unreadable file, or a file that is not a valid task definition.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return _read_task(path)
    names = task_names()
    if str(name_or_path) not in names:
        raise UsageError(_unknown("task", str(name_or_path), names))
    return _read_task(definitions_folder() / f"{name_or_path}.toml")


def _read_task(path: Path) -> Task:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the task file {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    try:
        training = document.pop("training", {})
        if not isinstance(training, dict):
            raise UsageError("`training` must be a table of values for a head's recipe")
        return replace(_task(_checked(document), path), training=training)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _checked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with tables flattened to dotted keys, or say what is wrong with it."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[key] = value
    for key, value in flat.items():
        if key not in _KEYS:
            raise UsageError(_unknown("key", key, _KEYS))
        # Exact types: to isinstance, true is an integer.
        if type(value) is not _KEYS[key]:
            raise UsageError(f"`{key}` must be {_KINDS[_KEYS[key]]}, not {value!r}")
    if missing := [key for key in _KEYS if key not in flat]:
        raise UsageError(f"missing key `{missing[0]}`; add it")
    return flat


def _task(values: Mapping[str, Any], path: Path) -> Task:
    for key in ("stop", "metrics"):
        if not all(isinstance(entry, str) and entry for entry in values[key]):
            raise UsageError(f"`{key}` must be a list of strings that are not empty")
    if not values["metrics"]:
        raise UsageError("`metrics` must name at least one metric")
    if values["max_new_tokens"] < 1:
        raise UsageError(f"`max_new_tokens` must be at least 1, not {values['max_new_tokens']}")
    if "{prompt}" not in values["prompt.template"]:
        raise UsageError("`prompt.template` must contain `{prompt}`")
    return Task(
        name=values["name"],
        version=values["version"],
        description=values["description"],
        metrics=tuple(get_metric(name).name for name in values["metrics"]),
        stop=tuple(values["stop"]),
        max_new_tokens=values["max_new_tokens"],
        generator=values["source.generator"],
        path=path,
        template=values["prompt.template"],
        licence=values["licence"],
    )


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    """Say that a word is unknown and which known one was probably meant."""
    known = list(known)
    near = get_close_matches(word, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"choose one of {_listed(known)}"
    return f"unknown {what} `{word}`; {hint}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
