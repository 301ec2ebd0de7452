"""The plan of a benchmark: which systems are timed at which batch sizes.

A benchmark uses the cells, rules and engines of a run, but has its own plan: its prompts are random
tokens without a task or metric, it has several engines and batch sizes, and it measures batches
instead of samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from specbench import __version__
from specbench.config import (
    AUTO,
    ENGINES,
    LLAMACPP,
    Count,
    DraftLengths,
    OneTemperature,
    Seeded,
    option,
)
from specbench.decoding.heads.registry import HeadFile, find_head
from specbench.engine.pairs import Loading, PairSpec
from specbench.errors import UsageError
from specbench.experiment.cells import Cell, Variant, cells_of, with_head
from specbench.experiment.plan import describe_pair
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.labels import UNTRAINED, method_label
from specbench.tasks.task import default_task_names

TRANSFORMERS = "transformers"  # the engine of Transformers' own loops
# Transformers' names of the methods that it implements.
THEIR_NAMES = {AUTOREGRESSIVE: "generate", "sd": "assisted", "static": "assisted"}


class BenchSettings(DraftLengths, OneTemperature, Seeded):
    """What to time, on which prompts, and how often."""

    panel = "Sampling"

    engine: list[str] = option(
        [AUTO],
        "Several values are all timed; auto means graph on a GPU, else eager.",
        metavar="NAME[,NAME...]",
        shown=AUTO,
        choices=(AUTO, *ENGINES, LLAMACPP),
    )
    batch_size: list[Count] = option(
        [1], "Texts per batch; several values are all timed.", metavar="B[,B...]"
    )
    acceptance: list[Annotated[float, Field(ge=0, le=1)]] = option(
        [],
        "Accept every drafted token with this probability instead of the rule's, which is still "
        "computed; several values are all timed.",
        metavar="RATE[,RATE...]",
        shown="the rules' own, on random prompts",
    )
    prompt_tokens: int | None = option(
        None, "Length of the random prompts.", ge=1, shown="512, or less if the context is shorter"
    )
    new_tokens: int = option(128, "Length of the answers; end tokens are ignored.", ge=1)
    # With fewer repeats there are no intervals.
    repeats: int = option(10, "Number of times to time each system, with new prompts.", ge=1)
    no_transformers: bool = option(
        False, "Omit Transformers' own generate and assisted generation."
    )


@dataclass(frozen=True)
class System:
    """A method on an engine."""

    engine: str  # a key of `ENGINES`, `auto`, or `transformers` for its own loops
    cell: Cell
    acceptance: float | None = None  # forced acceptance probability; None uses the rule's

    @property
    def takes_batches(self) -> bool:
        """Whether it supports batches; assisted generation does not."""
        return self.engine != TRANSFORMERS or self.cell.method == AUTOREGRESSIVE

    def columns(self) -> dict[str, Any]:
        """Return the system in the columns of ``bench.csv``."""
        forced = {"forced_acceptance": self.acceptance}
        return {"engine": self.engine, **self.cell.columns(), **forced}


@dataclass(frozen=True)
class Bench:
    """The plan of a benchmark."""

    pair: PairSpec
    loading: Loading
    settings: BenchSettings
    systems: tuple[System, ...]
    notes: tuple[str, ...] = ()  # what is skipped and why, one sentence each

    def __len__(self) -> int:
        return self.settings.repeats * sum(len(self.at(n)) for n in self.settings.batch_size)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompts; 0 until ``prepare`` resolves it."""
        return self.settings.prompt_tokens or 0

    @property
    def draft_length(self) -> int:
        """The largest draft length of all systems."""
        return max(system.cell.draft_length for system in self.systems)

    def at(self, batch_size: int) -> list[System]:
        """Return the systems that support a batch size."""
        return [system for system in self.systems if batch_size == 1 or system.takes_batches]

    def interleaved(self, systems: Sequence[System]) -> Iterator[tuple[int, System]]:
        """Yield the systems of every repeat; each repeat starts with another system."""
        for repeat in range(self.settings.repeats):
            shift = repeat % len(systems)
            for system in (*systems[shift:], *systems[:shift]):
                yield repeat, system

    def describe(self) -> dict[str, Any]:
        """Return the benchmark in plain values, for ``environment.json``."""
        return {
            "specbench": __version__,
            "pair": describe_pair(self.pair),
            "loading": self.loading.model_dump(),
            **self.settings.model_dump(),
            "systems": [system.columns() for system in self.systems],
            "notes": list(self.notes),
        }


def name_of(row: Mapping[str, Any]) -> str:
    """Return a short name for the method of a row of ``bench.csv``, without its engine."""
    label = method_label(row)
    if row["engine"] == TRANSFORMERS:
        return label.replace(row["method"], THEIR_NAMES[row["method"]], 1)
    return label


def build_bench(
    pair: PairSpec, variants: Iterable[Variant], loading: Loading, settings: BenchSettings
) -> Bench:
    """Plan a benchmark: every method with every engine, draft length and forced acceptance.

    Raises:
        UsageError: A head is missing.
    """
    notes: list[str] = []
    task, *_ = default_task_names()

    def find(head: str | None) -> HeadFile:
        """Return the named head; the default is the pair's head, else an untrained one."""
        if head is None and not loading.dummy:
            with suppress(UsageError):
                return find_head(pair, task)
        if head is None:
            notes.append(f"pair {pair.name} has no suitable head: diversed uses an untrained one")
        return find_head(pair, task, head or UNTRAINED)

    with_heads = [(method, with_head(parameters, find)) for method, parameters in variants]
    rates: Sequence[float | None] = settings.acceptance or [None]
    cells = [
        (cell, rate)
        for cell in cells_of(with_heads, settings.draft_length)
        for rate in (rates if cell.draft_length else [None])
    ]
    systems = [System(engine, *cell) for engine in settings.engine for cell in cells]
    if pair.gguf and not settings.no_transformers:
        notes.append("Transformers' own loops are skipped: they do not run GGUF files")
    elif not settings.no_transformers:
        theirs = [
            System(TRANSFORMERS, cell, rate)
            for cell, rate in cells
            if cell.method in THEIR_NAMES and cell.values.get("weight") not in (0, 1)
        ]
        if settings.temperature == 0 and settings.acceptance:
            theirs = [system for system in theirs if system.acceptance is None]
            notes.append(
                "Transformers' assisted generation is skipped: its acceptance cannot be forced at "
                "temperature 0"
            )
        elif max(settings.batch_size) > 1 and not all(system.takes_batches for system in theirs):
            notes.append("Transformers' assisted generation supports only batch 1")
        systems += theirs
    return Bench(pair, loading, settings, tuple(dict.fromkeys(systems)), tuple(notes))
