"""A suite: a file of trainings and entries; each entry describes a grid of runs.

Nothing here imports torch or reads data, so a suite is validated before anything is loaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specbench.config import DRAFT_LENGTH, Count, DataOptions, Loading, Settings
from specbench.decoding.heads.registry import HeadFile
from specbench.engine.pairs import get_pair, with_draft
from specbench.errors import UsageError
from specbench.experiment.cells import cells_of
from specbench.experiment.folders import same_plan
from specbench.experiment.forecast import Cost
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.variants import Variant, method_variants, with_baselines
from specbench.methods.registry import get_method
from specbench.runs.run import COMPLETE, read_run
from specbench.schema import StrictModel, load_toml, validated
from specbench.tasks.task import load_task
from specbench.words import unknown

HEADS, DRAFTS = "heads", "drafts"  # what a suite trains; also subfolders of its output
EVERY, TUNED = "every", "fine-tuned"

Names = Annotated[list[str], Field(min_length=1)]


class TrainTable(StrictModel):
    """Heads or fine-tuned drafts to train for every pair and task; a table ``[[train]]``.

    Attributes:
        what: ``heads`` or ``drafts``.
        options: More options of ``specbench train`` or ``finetune-draft``, by name.
        hours: Assumed duration of one training, for ``--dry-run``.
    """

    pairs: Names
    tasks: Names
    what: Literal["heads", "drafts"] = "heads"
    options: dict[str, Any] = Field(default_factory=dict)
    hours: float | None = None


class Entry(StrictModel):
    """One run per pair, task, temperature and seed; a table ``[[entry]]``.

    Attributes:
        name: Prefix of the runs' folder names.
        tasks: Task names or task files.
        parameters: Values of method parameters by name; each method is measured with every
            combination of its parameters' values.
        heads: ``own`` uses the head of the task, ``every`` measures all heads that the suite
            trains for the pair.
        drafts: ``own`` uses the pair's draft, ``fine-tuned`` the one that the suite trains on the
            task.
        settings: More settings shared by all cells, see ``Settings``.
    """

    name: str
    pairs: Names
    tasks: Names
    methods: Names
    about: str = ""
    parameters: dict[str, list[Any]] = Field(default_factory=dict)
    heads: Literal["own", "every"] = "own"
    drafts: Literal["own", "fine-tuned"] = "own"
    draft_lengths: list[Count] = Field([DRAFT_LENGTH], min_length=1)
    temperatures: list[float] = Field([1.0], min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    limit: Count = 100
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sound(self) -> Entry:
        try:
            for name in ("temperature", "seed"):
                if name in self.settings:
                    raise UsageError(f"`settings`: give `{name}s` instead of `{name}`")
            if "head" in self.parameters:
                raise UsageError("`parameters`: omit `head`; a suite uses the heads that it trains")
            self.variants()
            self.run_settings(self.temperatures[0], self.seeds[0])
        except UsageError as error:
            raise ValueError(f"({self.name}): {error}") from error
        return self

    @property
    def needs_heads(self) -> bool:
        """Whether any method uses a head."""
        return any(p.name == "head" for name in self.methods for p in get_method(name).parameters)

    def run_settings(self, temperature: float, seed: int) -> Settings:
        """Return the settings shared by all cells of a run."""
        return Settings(**{**self.settings, "temperature": temperature, "seed": seed})

    def variants(self, heads: Sequence[Any] = ()) -> list[Variant]:
        """Return no speculation, and the methods with their parameters, once per head if any."""
        parameters = {"head": list(heads)} if heads and self.needs_heads else {}
        return with_baselines(method_variants(self.methods, {**self.parameters, **parameters}))


@dataclass(frozen=True)
class Job:
    """One head or draft to train."""

    table: TrainTable
    pair: str
    task: str

    def folder(self, output: Path) -> Path:
        """Return the output folder, which is named after the task."""
        return output / self.table.what / self.pair / self.task

    def __str__(self) -> str:
        return f"the {self.table.what.removesuffix('s')} of {self.pair} on {self.task}"

    # A training contains lists, which have no hash; the folder identifies the job.
    def __hash__(self) -> int:
        return hash(self.folder(Path()))


@dataclass(frozen=True)
class Unit:
    """One run of a suite, with the heads and drafts that it needs."""

    entry: Entry
    pair: str
    task: str
    temperature: float
    seed: int
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        task = Path(self.task).stem
        return f"{self.entry.name}-{self.pair}-{task}-T{self.temperature:g}-seed{self.seed}"

    @property
    def settings(self) -> Settings:
        """The settings shared by all cells of the run."""
        return self.entry.run_settings(self.temperature, self.seed)

    @property
    def cells(self) -> int:
        """The number of cells."""
        return len(cells_of(self._variants(Path()), self.entry.draft_lengths))

    def cost(self, tokens_per_second: float | None) -> Cost:
        """Return the greatest cost of the run; a data set may have fewer examples."""
        tokens = self.settings.max_new_tokens or load_task(self.task).max_new_tokens
        samples = self.cells * self.entry.limit * self.settings.repeats
        return Cost(samples, tokens, tokens_per_second and 1 / tokens_per_second)

    def plan(self, suite: Suite, output: Path, data: DataOptions, may_execute: bool) -> Plan:
        """Plan the run with what is trained in the suite's folder; see ``build_plan``."""
        spec = get_pair(self.pair)
        for job in self.jobs:
            if job.table.what == DRAFTS:
                spec = with_draft(spec, str(job.folder(output)))
        return build_plan(
            spec,
            [load_task(self.task, data)],
            self._variants(output),
            self.entry.draft_lengths,
            self.settings,
            loading=suite.loading,
            limit=self.entry.limit,
            may_execute=may_execute or spec.bundled,
        )

    def _variants(self, output: Path) -> list[Variant]:
        """Return the methods with their parameters, and with the heads in the suite's folder."""
        every = self.entry.heads == EVERY
        heads = [
            HeadFile(job.task, job.folder(output)) if every else str(job.folder(output).parent)
            for job in self.jobs
            if job.table.what == HEADS
        ]
        return self.entry.variants(heads)


class Suite(StrictModel):
    """A file of trainings and entries.

    Attributes:
        name: The file name without its suffix.
        train: Trainings, executed before the runs that need them.
        entry: Runs to measure.
        about: One line for the user.
        loading: How to load the pairs.
        assumed_tokens_per_second: Per worker, by pair, for ``--dry-run``.
    """

    name: str
    entry: list[Entry] = Field(min_length=1)
    train: list[TrainTable] = Field(default_factory=list)
    about: str = ""
    loading: Loading = Loading()
    assumed_tokens_per_second: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sound(self) -> Suite:
        for name, number in Counter(entry.name for entry in self.entry).items():
            if number > 1:
                raise ValueError(f"two entries are named {name}: rename one")
        for folder, number in Counter(job.folder(Path()) for job in self.jobs()).items():
            if number > 1:
                raise ValueError(f"{folder} would be trained twice: remove it from one [[train]]")
        for unit in self.units():
            entry, trained = unit.entry, {job.table.what for job in unit.jobs}
            if entry.drafts == TUNED and DRAFTS not in trained:
                raise ValueError(
                    f"{entry.name} needs the draft of {unit.pair} fine-tuned on {unit.task}: add "
                    f'it to a [[train]] with what = "{DRAFTS}"'
                )
            if entry.heads == EVERY and not trained:
                raise ValueError(f"{entry.name} needs heads of {unit.pair}: add a [[train]]")
        return self

    def jobs(self) -> list[Job]:
        """Return all heads and drafts to train."""
        return [Job(t, *names) for t in self.train for names in product(t.pairs, t.tasks)]

    def units(self) -> list[Unit]:
        """Return all runs, grouped by pair so that each pair is loaded once."""
        units = [
            Unit(entry, pair, task, temperature, seed, self._needed(entry, pair, task))
            for entry in self.entry
            for pair, task in product(entry.pairs, entry.tasks)
            for temperature, seed in product(entry.temperatures, entry.seeds)
        ]
        order = list(dict.fromkeys(unit.pair for unit in units))
        return sorted(units, key=lambda unit: order.index(unit.pair))

    def _needed(self, entry: Entry, pair: str, task: str) -> tuple[Job, ...]:
        """Return the heads and drafts that the runs of an entry on a pair and a task need."""
        tasks: dict[str, Collection[str]] = {HEADS: (), DRAFTS: ()}
        if entry.needs_heads:
            tasks[HEADS] = {job.task for job in self.jobs()} if entry.heads == EVERY else {task}
        if entry.drafts == TUNED:
            tasks[DRAFTS] = {task}
        return (*(j for j in self.jobs() if j.pair == pair and j.task in tasks[j.table.what]),)


def find_suite(name: str) -> Path:
    """Return the file of a suite, given the name of a bundled suite or a path."""
    bundled = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
    path = bundled.get(name, Path(name))
    if not path.is_file():
        raise UsageError(unknown("suite", name, [*bundled, "FILE.toml"]))
    return path


def read_suite(path: Path) -> Suite:
    """Read a suite; raise ``UsageError`` for a mistake in the file."""
    values = load_toml(path, "suite")
    try:
        return validated(Suite, {"name": path.stem, **values}, str(path))
    except UsageError as error:  # errors from Settings do not name the file
        if str(error).startswith(f"{path}: "):
            raise
        raise UsageError(f"{path}: {error}") from error


def is_done(folder: Path, plan: Plan) -> bool:
    """Return whether a folder contains all samples of a plan without failures."""
    run = read_run(folder, required=False)
    whole = {"state": COMPLETE, "samples": len(plan), "failed": 0}
    return run.progress.items() >= whole.items() and same_plan(run.config, plan.describe())


def shard(units: Sequence[Unit], text: str | None) -> list[Unit]:
    """Return every n-th run starting with the i-th (from 1) for ``i/n``; all runs for None."""
    if text is None:
        return list(units)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard must be I/N with I from 1 to N, not {text!r}")
    return list(units[int(match[1]) - 1 :: int(match[2])])
