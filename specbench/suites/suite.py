"""A suite: a file of trainings and entries; each entry describes a grid of runs.

Nothing here imports torch or reads data, so a suite is validated before anything is loaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specbench.config import DRAFT_LENGTH, Count, DataOptions, Loading, Settings
from specbench.errors import UsageError
from specbench.experiment.folders import COMPLETE, read_run, same_plan
from specbench.experiment.plan import Plan, build_plan
from specbench.experiment.variants import Variant, method_variants, with_baselines
from specbench.files import find_stored
from specbench.heads.registry import HeadFile
from specbench.methods.registry import AUTOREGRESSIVE, get_method
from specbench.pairs.registry import PairSpec, get_pair, with_draft
from specbench.tasks.task import load_task
from specbench.validation import Model, load_toml, validated

HEADS, DRAFTS = "heads", "drafts"  # what a suite trains; also subfolders of its output
EVERY, TUNED = "every", "fine-tuned"

Names = Annotated[list[str], Field(min_length=1)]


class Training(Model):
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


class Entry(Model):
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

    training: Training
    pair: str
    task: str

    def folder(self, output: Path) -> Path:
        """Return the output folder, which is named after the task."""
        return output / self.training.what / self.pair / self.task

    def __str__(self) -> str:
        return f"the {self.training.what.removesuffix('s')} of {self.pair} on {self.task}"

    # A training contains lists, which have no hash; the folder identifies the job.
    def __hash__(self) -> int:
        return hash(self.folder(Path()))


@dataclass(frozen=True)
class Unit:
    """One run of a suite."""

    entry: Entry
    pair: str
    task: str
    temperature: float
    seed: int

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        task = Path(self.task).stem
        return f"{self.entry.name}-{self.pair}-{task}-T{self.temperature:g}-seed{self.seed}"

    def settings(self) -> Settings:
        """Return the settings shared by all cells of the run."""
        return self.entry.run_settings(self.temperature, self.seed)

    def cells(self, heads: int) -> int:
        """Return the number of cells, given the number of heads of the pair."""
        variants = self.entry.variants(range(heads) if self.entry.heads == EVERY else ())
        lengths = len(self.entry.draft_lengths)
        return sum(1 if method == AUTOREGRESSIVE else lengths for method, _ in variants)

    def samples(self, heads: int) -> int:
        """Return the maximum number of samples; a data set may have fewer examples."""
        return self.cells(heads) * self.entry.limit * self.settings().repeats


class Suite(Model):
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
    train: list[Training] = Field(default_factory=list)
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
            entry, needed = unit.entry, self.needs(unit)
            if entry.drafts == TUNED and not any(job.training.what == DRAFTS for job in needed):
                raise ValueError(
                    f"{entry.name} needs the draft of {unit.pair} fine-tuned on {unit.task}: add "
                    f'it to a [[train]] with what = "{DRAFTS}"'
                )
            if entry.heads == EVERY and not needed:
                raise ValueError(f"{entry.name} needs heads of {unit.pair}: add a [[train]]")
        return self

    def jobs(self) -> list[Job]:
        """Return all heads and drafts to train."""
        return [Job(t, *names) for t in self.train for names in product(t.pairs, t.tasks)]

    def units(self) -> list[Unit]:
        """Return all runs, grouped by pair so that each pair is loaded once."""
        units = [
            Unit(entry, *values)
            for entry in self.entry
            for values in product(entry.pairs, entry.tasks, entry.temperatures, entry.seeds)
        ]
        order = list(dict.fromkeys(unit.pair for unit in units))
        return sorted(units, key=lambda unit: order.index(unit.pair))

    def needs(self, unit: Unit) -> list[Job]:
        """Return the heads and drafts that a run needs."""
        entry = unit.entry
        jobs = []
        for job in self.jobs():
            same_task = job.task == unit.task
            if job.training.what == HEADS:
                needed = entry.needs_heads and (same_task or entry.heads == EVERY)
            else:
                needed = entry.drafts == TUNED and same_task
            if needed and job.pair == unit.pair:
                jobs.append(job)
        return jobs

    def heads(self, pair: str) -> int:
        """Return the number of heads trained for a pair."""
        return sum(job.training.what == HEADS and job.pair == pair for job in self.jobs())

    def most_hours(self, unit: Unit, paces: Mapping[str, float]) -> float | None:
        """Return the worker hours if every answer reaches its limit, None for an unknown pace.

        Args:
            unit: The run.
            paces: Tokens per second by pair.
        """
        if unit.pair not in paces:
            return None
        limit = unit.settings().max_new_tokens or load_task(unit.task).max_new_tokens
        return unit.samples(self.heads(unit.pair)) * limit / paces[unit.pair] / 3600

    def plan(self, unit: Unit, output: Path, data: DataOptions, may_execute: bool) -> Plan:
        """Plan one run of the suite; see ``build_plan``."""
        entry, spec = unit.entry, self._pair(unit, output)
        return build_plan(
            spec,
            [load_task(unit.task, data)],
            entry.variants(self._heads(unit, output)),
            entry.draft_lengths,
            unit.settings(),
            loading=self.loading,
            limit=entry.limit,
            may_execute=may_execute or spec.bundled,
        )

    def _pair(self, unit: Unit, output: Path) -> PairSpec:
        spec = get_pair(unit.pair)
        if unit.entry.drafts != TUNED:
            return spec
        (job,) = (job for job in self.needs(unit) if job.training.what == DRAFTS)
        return with_draft(spec, str(job.folder(output)))

    def _heads(self, unit: Unit, output: Path) -> list[Any]:
        """Return the heads of a run, in the form that ``build_plan`` takes."""
        jobs = [job for job in self.needs(unit) if job.training.what == HEADS]
        if unit.entry.heads == EVERY:
            return [HeadFile(job.task, job.folder(output)) for job in jobs]
        return [str(job.folder(output).parent) for job in jobs]


def find_suite(name: str) -> Path:
    """Return the file of a suite, given the name of a bundled suite or a path."""
    bundled = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
    path = bundled.get(name, Path(name))
    if not path.is_file():
        raise UsageError(f"there is no suite {name}: give a TOML file, or {' or '.join(bundled)}")
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
    plan = plan.added_to(run.tasks)
    whole = {"state": COMPLETE, "samples": len(plan), "failed": 0}
    return run.progress.items() >= whole.items() and same_plan(run.config, plan.describe())


def measured_paces(output: Path) -> dict[str, float]:
    """Return the measured tokens per second in a suite's folder, by pair."""
    from specbench.runs.frames import read_samples
    from specbench.runs.records import TABLE

    if not find_stored(output, TABLE):
        return {}
    samples = read_samples(output)
    seconds = samples["prefill_seconds"] + samples["decode_seconds"]
    sums = samples.assign(seconds=seconds).groupby("pair")[["output_tokens", "seconds"]].sum()
    return {str(pair): row.output_tokens / row.seconds for pair, row in sums.iterrows()}


def shard(units: Sequence[Unit], text: str | None) -> list[Unit]:
    """Return every n-th run starting with the i-th (from 1) for ``i/n``; all runs for None."""
    if text is None:
        return list(units)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard must be I/N with I from 1 to N, not {text!r}")
    return list(units[int(match[1]) - 1 :: int(match[2])])
