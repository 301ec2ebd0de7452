"""A task is one declarative TOML file: source of examples, prompt, stop strings, limit, metrics."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from specbench.errors import RunError, UsageError
from specbench.example import CHAT, Example
from specbench.tasks.dataset import Dataset, Sourcing
from specbench.tasks.definition import PROMPT, form_of, read_definition
from specbench.words import listed, unknown

SPLITS = ("train", "test", "held-out")
# A generator never ends. Without a limit an evaluation takes as many examples as the paper's does.
GENERATED_EXAMPLES = 100
# Distance between the indices of two seeds: different seeds never share a generated example.
SEED_STRIDE = 1_000_000
# From here on, seeds of a generator's training split give its held-out one.
RESERVED_SEEDS = 1_000


class Source(Protocol):
    """Where a task's examples come from."""

    @property
    def generator(self) -> str | None:
        """Name of the generator, where it is one: examples then need no data and never end."""

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return examples with their final prompts; see ``Task.examples``."""

    def provenance(self) -> dict[str, Any]:
        """Return what the examples come from, in plain values."""


@dataclass(frozen=True)
class Generated:
    """Examples of a generator.

    Attributes:
        generator: Key of ``specbench.tasks.mini.GENERATORS``.
        template: Text around the prompt, with ``{prompt}`` in its place.
    """

    generator: str
    template: str = PROMPT

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return the examples of a range of indices that belongs to split and seed alone."""
        from specbench.tasks.mini import GENERATORS

        if split == "held-out":
            split, seed = "train", (seed + 1) * RESERVED_SEEDS
        first = seed * SEED_STRIDE
        count = GENERATED_EXAMPLES if limit is None else limit
        made = (GENERATORS[self.generator](split, first + i) for i in range(count))
        # Not str.format: a template may hold other braces, for instance those of JSON or code.
        return [replace(e, prompt=self.template.replace(PROMPT, e.prompt)) for e in made]

    def provenance(self) -> dict[str, Any]:
        """Return the generator's name."""
        return {"generator": self.generator}


@dataclass(frozen=True)
class Listed:
    """Test examples in the order of their file; there are no others.

    Attributes:
        rows: The examples.
        facts: What their file is, for ``config.json``.
    """

    rows: tuple[Example, ...] = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generator(self) -> None:
        """A list is no generator."""
        return None

    def examples(self, split: str, limit: int | None, seed: int) -> list[Example]:
        """Return the first examples, or with a seed the first of a shuffled order."""
        if split != "test":
            raise UsageError("a list of prompts has no training split: choose a task that has one")
        rows = list(self.rows)
        if seed:
            random.Random(seed).shuffle(rows)
        return rows[:limit]

    def provenance(self) -> dict[str, Any]:
        """Return what the file is."""
        return dict(self.facts)


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
        source: Where the examples come from.
        path: File the task was read from.
        licence: Licence of the examples.
        prompt_format: ``chat`` makes the prompt a user's message, where the model has a chat
            template; ``plain`` gives it as it is.
        training: What differs for this task from the usual recipe of a head.
    """

    name: str
    version: str
    description: str
    metrics: tuple[str, ...]
    stop: tuple[str, ...]
    max_new_tokens: int
    source: Source
    path: Path
    licence: str = ""
    prompt_format: str = CHAT
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str | None:
        """The metric that stands for quality; None where there is none."""
        return self.metrics[0] if self.metrics else None

    @property
    def generator(self) -> str | None:
        """Name of the generator; None where the examples are those of a file or the hub."""
        return self.source.generator

    def examples(self, split: str, limit: int | None, seed: int = 0) -> list[Example]:
        """Return examples with their final prompts.

        Args:
            split: ``train`` or ``test``, or ``held-out``: training examples that ``train`` never
                gives, for scores of what was trained. A prompt file has ``test`` only.
            limit: At most this many; None takes all rows of a file, or the first
                ``GENERATED_EXAMPLES`` of a generator.
            seed: Which examples. 0 takes the first ones; another seed gives a disjoint set from a
                generator and a shuffled order from a file. It also chooses the worked examples
                that go before the prompts, alike for all of them.

        Raises:
            UsageError: Unknown or missing split, a limit below 1, a negative seed, or unusable
                data.
            RunError: The hub's data set cannot be loaded.
        """
        if split not in SPLITS:
            raise UsageError(f"unknown split `{split}`; choose one of {listed(SPLITS)}")
        if limit is not None and limit < 1:
            raise UsageError(f"the limit must be at least 1, not {limit}")
        if seed < 0:
            raise UsageError(f"the seed must be at least 0, not {seed}")
        return self.source.examples(split, limit, seed)

    def provenance(self) -> dict[str, Any]:
        """Return where the examples come from, in plain values, for ``config.json``.

        Files and rows are named once they have been read.
        """
        return self.source.provenance()


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


def default_task_names() -> list[str]:
    """Return the names of the bundled tasks that need no data, in alphabetical order."""
    return [name for name in task_names() if load_task(name).generator]


def task_path(name_or_path: str | Path) -> Path:
    """Return the file of a bundled task by its name; a TOML file is its own.

    Raises:
        UsageError: No bundled task has that name.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    names = task_names()
    if str(name_or_path) not in names:
        raise UsageError(unknown("task", str(name_or_path), names))
    return definitions_folder() / f"{name_or_path}.toml"


def load_task(name_or_path: str | Path, sourcing: Sourcing = Sourcing()) -> Task:  # noqa: B008
    """Load a bundled task by its name, or any task from a TOML file.

    Neither data nor the network is touched before the first examples are asked for.

    Args:
        name_or_path: What the user typed.
        sourcing: How data is to be had.

    Raises:
        UsageError: Unknown name, unreadable file, a file that is not a valid task definition, or
            shots for a task that has none.
    """
    path = task_path(name_or_path)
    values, problems = read_definition(path)
    if problems:
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise UsageError(f"{path}: {problems[0]}{more}")
    return Task(
        name=values["name"],
        version=values["version"],
        description=values["description"],
        metrics=tuple(values["metrics"]),
        stop=tuple(values["stop"]),
        max_new_tokens=values["max_new_tokens"],
        source=_source(values, sourcing),
        path=path,
        licence=values["licence"],
        prompt_format=values.get("prompt.format", CHAT),
        training=values.get("training", {}),
    )


def _source(values: Mapping[str, Any], sourcing: Sourcing) -> Source:
    if sourcing.shots and "prompt.shot" not in values:
        raise UsageError(
            f"{values['name']} has no template for worked examples (`prompt.shot`): leave --shots "
            "out"
        )
    if "source.generator" in values:
        return Generated(values["source.generator"], values["prompt.template"])
    return Dataset(
        task=values["name"],
        repository=values["source.dataset"],
        config=values.get("source.config"),
        revision=sourcing.revision or values.get("source.revision"),
        test=values["source.test"],
        train=values.get("source.train"),
        form=form_of(values),
        shots=values.get("prompt.shots", 0) if sourcing.shots is None else sourcing.shots,
        folder=sourcing.folder,
        offline=sourcing.offline,
    )
