"""A suite as its file says it: trainings, and entries that each stand for many runs.

Nothing here imports torch or reads data; a suite is known in full before anything is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.experiment.settings import USUAL, Settings
from specbench.experiment.variants import Variant
from specbench.methods.registry import AUTOREGRESSIVE, METHODS, get_method
from specbench.words import unknown

HEADS, DRAFTS = "heads", "drafts"  # folders of what a suite trains, below its output
OWN, EVERY, TUNED = "own", "every", "fine-tuned"


@dataclass(frozen=True, eq=False)
class Training:
    """Heads, or fine-tuned drafts, for every task and pair; a table ``[[train]]``.

    Attributes:
        pairs: Names of pairs.
        tasks: Names of tasks.
        what: ``heads`` or ``drafts``.
        options: Further options of ``specbench train`` or ``finetune-draft``, by name.
        hours: What one of them is assumed to take, for ``--dry-run``.
    """

    pairs: list[str]
    tasks: list[str]
    what: str = HEADS
    options: dict[str, Any] = field(default_factory=dict)
    hours: float | None = None

    def __post_init__(self) -> None:
        if self.what not in (HEADS, DRAFTS):
            raise UsageError(f"`what` must be {HEADS} or {DRAFTS}, not {self.what!r}")


@dataclass(frozen=True)
class Entry:
    """Runs of the same kind; a table ``[[entry]]``.

    There is a run for every pair, task, temperature and seed.

    Attributes:
        name: Begins the names of the runs' folders.
        pairs: Names of pairs.
        tasks: Names of tasks, or files of tasks.
        methods: What is measured, in this order.
        about: What the entry is for.
        parameters: Values of methods' parameters by name; a method is measured with every
            combination of those that it takes.
        heads: ``own`` takes the head of the task, ``every`` measures all heads of the pair that
            the suite trains, one after the other.
        drafts: ``own``, or ``fine-tuned`` for the draft that the suite trains on the task.
        draft_lengths: Tokens drafted per round.
        temperatures: Of sampling; each is a run.
        seeds: Each is a run.
        limit: Examples of a task.
        settings: Further settings that all cells share, as in ``Settings``.
    """

    name: str
    pairs: list[str]
    tasks: list[str]
    methods: list[str]
    about: str = ""
    parameters: dict[str, list[Any]] = field(default_factory=dict)
    heads: str = OWN
    drafts: str = OWN
    draft_lengths: list[int] = field(default_factory=lambda: [5])
    temperatures: list[float] = field(default_factory=lambda: [USUAL.temperature])
    seeds: list[int] = field(default_factory=lambda: [0])
    limit: int = 100
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("heads", self.heads, (OWN, EVERY)),
            ("drafts", self.drafts, (OWN, TUNED)),
        ):
            if value not in known:
                raise UsageError(f"`{name}` must be {' or '.join(known)}, not {value!r}")
        for name in ("pairs", "tasks", "methods", "draft_lengths", "temperatures", "seeds"):
            if not getattr(self, name):
                raise UsageError(f"`{name}` is empty: give at least one")
        self.variants()
        taken = {p.name for method in self.methods for p in METHODS[method].parameters}
        for name in self.parameters:
            if name not in taken - {"head"}:
                raise UsageError(f"`parameters`: {unknown('parameter', name, taken - {'head'})}")
        Settings(**self.shared(self.temperatures[0], self.seeds[0]))

    @property
    def needs_heads(self) -> bool:
        """Whether any of the methods verifies with a head."""
        return any(_takes(method, "head") for method in self.methods)

    def shared(self, temperature: float, seed: int) -> dict[str, Any]:
        """Return the settings of one of its runs by name."""
        taken = {f.name for f in fields(Settings)} - {"temperature", "seed"}
        for name in self.settings:
            if name not in taken:
                raise UsageError(f"`settings`: {unknown('setting', name, taken)}")
        return {**self.settings, "temperature": temperature, "seed": seed}

    def variants(self, heads: Sequence[Any] = (None,)) -> list[Variant]:
        """Return the methods with their parameters.

        Args:
            heads: Each is measured by every method that takes one.

        Raises:
            UsageError: An unknown method, or a value out of range.
        """
        found = []
        for name in self.methods:
            method = get_method(name)
            swept = {key: list_ for key, list_ in self.parameters.items() if _takes(name, key)}
            for values in product(*swept.values()):
                resolved = method.resolve(dict(zip(swept, values, strict=True)))
                for head in heads if "head" in resolved else heads[:1]:
                    own = {"head": head} if "head" in resolved else {}
                    found.append((name, resolved | own))
        return found


@dataclass(frozen=True)
class Unit:
    """One run of a suite.

    Attributes:
        entry: What it is part of.
        pair: Name of the pair.
        task: Name of the task.
        temperature: Of sampling.
        seed: Decides examples and draws.
    """

    entry: Entry
    pair: str
    task: str
    temperature: float
    seed: int

    @property
    def name(self) -> str:
        """Names the run's folder."""
        task = Path(self.task).stem
        return f"{self.entry.name}-{self.pair}-{task}-T{self.temperature:g}-seed{self.seed}"

    def settings(self) -> Settings:
        """Return what all cells of the run share."""
        return Settings(**self.entry.shared(self.temperature, self.seed))

    def cells(self, heads: int) -> int:
        """Return how many cells it has, where a pair has so many heads."""
        many = heads if self.entry.heads == EVERY else 1
        lengths = len(self.entry.draft_lengths)
        variants = self.entry.variants([None] * many)
        return sum(1 if method == AUTOREGRESSIVE else lengths for method, _ in variants)

    def samples(self, heads: int) -> int:
        """Return how many samples it has at most; a data set may have fewer examples."""
        return self.cells(heads) * self.entry.limit * self.settings().repeats


@dataclass(frozen=True)
class Job:
    """One head or draft to train.

    Attributes:
        training: What it is part of.
        pair: Name of the pair.
        task: Name of the task.
    """

    training: Training
    pair: str
    task: str

    def folder(self, output: Path) -> Path:
        """Return where it goes; a draft's folder bears its task's name, as in the paper's table."""
        return output / self.training.what / self.pair / self.task


@dataclass(frozen=True)
class Suite:
    """A file of trainings and entries.

    Attributes:
        name: The file's, without its suffix.
        trainings: Done before whatever needs them.
        entries: What is measured.
        about: One line for the user.
        loading: How pairs are loaded, as in ``Loading``.
        assumed_tokens_per_second: By pair, of one worker, for ``--dry-run``.
    """

    name: str
    trainings: tuple[Training, ...]
    entries: tuple[Entry, ...]
    about: str
    loading: Loading
    assumed_tokens_per_second: Mapping[str, float]

    def jobs(self) -> list[Job]:
        """Return all there is to train."""
        return [
            Job(training, pair, task)
            for training in self.trainings
            for pair in training.pairs
            for task in training.tasks
        ]

    def units(self) -> list[Unit]:
        """Return all runs, those of a pair together, so that it is loaded once."""
        units = [
            Unit(entry, *values)
            for entry in self.entries
            for values in product(entry.pairs, entry.tasks, entry.temperatures, entry.seeds)
        ]
        order = list(dict.fromkeys(unit.pair for unit in units))
        return sorted(units, key=lambda unit: order.index(unit.pair))

    def needs(self, unit: Unit) -> list[Job]:
        """Return what must be trained before a run."""
        heads = unit.entry.needs_heads
        every = unit.entry.heads == EVERY
        return [
            job
            for job in self.jobs()
            if job.pair == unit.pair
            and (
                (job.training.what == HEADS and heads and (every or job.task == unit.task))
                or (
                    job.training.what == DRAFTS
                    and unit.entry.drafts == TUNED
                    and job.task == unit.task
                )
            )
        ]


def shard(units: Sequence[Unit], text: str | None) -> list[Unit]:
    """Return every n-th of some runs.

    Args:
        units: The runs.
        text: ``i/n`` takes the i-th, counted from 1, and then every n-th; None takes all.

    Raises:
        UsageError: It is not of this form.
    """
    if text is None:
        return list(units)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard must be I/N with I from 1 to N, not {text!r}")
    return list(units[int(match[1]) - 1 :: int(match[2])])


def _takes(method: str, parameter: str) -> bool:
    return any(known.name == parameter for known in get_method(method).parameters)
