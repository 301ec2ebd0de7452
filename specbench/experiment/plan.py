"""The plan of a run: which cells are measured on which examples, and in which order.

A cell is one row of the results: a method with its parameters, draft length and drafter. The cells
of a task are interleaved: all of them decode a block, which is as many examples as a batch has, or
as many as a server gets at once, before the next block starts, so that changes in the machine's
speed during the run affect all cells equally. With ``refill``, a block has several batches: the
next prompt takes the row of a text that ended, and rows are empty only at the end of a block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any, Literal

from specbench import __version__
from specbench.engine.pairs import Loading, PairSpec
from specbench.experiment.cells import CONCURRENCY, Cell
from specbench.files import shown_path
from specbench.methods.registry import AUTOREGRESSIVE, get_method
from specbench.plugins import digest_of, short_name
from specbench.runs.columns import TIMED_BASELINE
from specbench.runs.configuration import CellConfig, Settings, TaskConfig
from specbench.runs.labels import SERVERS
from specbench.runs.model import SampleRecord
from specbench.serving.arm import Arm
from specbench.tasks.example import Example
from specbench.tasks.metrics import GREEDY, get_metric
from specbench.tasks.task import Task

SampleIndex = tuple[int, int, int, int]  # indices of task, repeat, example and cell

_BASELINES = (AUTOREGRESSIVE, "sd")  # timed again in every session


@dataclass(frozen=True)
class TaskPlan:
    """The examples of one task and the cells that decode them."""

    task: Task
    examples: tuple[Example, ...]
    cells: tuple[Cell, ...]
    max_new_tokens: int
    batch_size: int = 0  # texts decoded together in a benchmark; 0 for that of the settings

    @property
    def longest_draft(self) -> int:
        """The largest draft length of the cells."""
        return max((cell.draft_length for cell in self.cells), default=0)

    @property
    def executed(self) -> bool:
        """Whether scoring executes the answers."""
        return any(get_metric(name).executes for name in self.task.metrics)

    @property
    def needs_greedy(self) -> bool:
        """Whether scoring needs the target's own greedy texts."""
        return any(get_metric(name).needs == GREEDY for name in self.task.metrics)

    @property
    def samples(self) -> int:
        """Number of samples of one cell and repeat: one per example or turn."""
        return sum(len(example.messages) for example in self.examples)

    def describe(self) -> dict[str, Any]:
        """Return the task's plan in plain values, for ``config.json``."""
        return {
            **{"name": self.task.name, "version": self.task.version},
            **{"metrics": list(self.task.metrics), "prompt_format": self.task.prompt_format},
            **{"data": self.task.provenance(), "stop": list(self.task.stop)},
            **{"max_new_tokens": self.max_new_tokens, "examples": len(self.examples)},
            **({"batch_size": self.batch_size} if self.batch_size else {}),
            "cells": [cell.describe() for cell in self.cells],
        }


@dataclass(frozen=True)
class Step:
    """One decode: an example, a cell and the repeat, counted from 0.

    The turns of a conversation are decoded one after the other; ``turn`` is counted from 1, and
    None for all of them or an example without turns.
    """

    plan: TaskPlan
    example: Example
    cell: Cell
    repeat: int
    place: SampleIndex  # sort key of the samples
    turn: int | None = None

    @property
    def sample_key(self) -> str:
        """The key of the random numbers; equal for all cells, so that comparisons are paired."""
        key = f"{self.plan.task.name}/{self.example.id}/{self.repeat}"
        return f"{key}/{self.turn}" if self.turn else key

    @property
    def turns(self) -> list[Step]:
        """One step per turn of a conversation, or the step itself."""
        numbers = range(1, len(self.example.turns) + 1)
        return [replace(self, turn=number) for number in numbers] or [self]


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    pair: PairSpec
    loading: Loading
    settings: Settings
    tasks: tuple[TaskPlan, ...]
    may_execute: bool = False  # generated code may be executed for scoring
    notes: tuple[str, ...] = ()  # what is skipped and why, and which heads are used
    # digests of the source of the user's own rules and metrics, by name
    sources: Mapping[str, str] = field(default_factory=dict)
    arms: tuple[Arm, ...] = ()  # servers
    in_flight: int = 1  # most requests that a server gets at once
    # Which times count; only if those of prompts do are they read again by a warm processor.
    times: Literal["all", "rounds", "none"] = "all"

    def __len__(self) -> int:
        return self.settings.repeats * sum(t.samples * len(t.cells) for t in self.tasks)

    @property
    def is_benchmark(self) -> bool:
        """Whether it measures nothing but time, of batches whose size the tasks name."""
        return any(task.batch_size for task in self.tasks)

    def batch_size(self, task: TaskPlan) -> int:
        """Return how many texts of a task are decoded together."""
        return task.batch_size or self.settings.batch_size

    def block_size(self, task: TaskPlan) -> int:
        """Return the examples of a block: of its batches, and enough for the requests in flight."""
        return max(self.batch_size(task) * (self.settings.refill or 1), self.in_flight)

    @property
    def executes(self) -> bool:
        """Whether generated code will be executed."""
        return self.may_execute and any(task.executed for task in self.tasks)

    def part(self, *, servers: bool) -> Plan:
        """Return the plan of the cells that servers decode, or of all others."""
        tasks = (
            replace(task, cells=tuple(cell for cell in task.cells if cell.server == servers))
            for task in self.tasks
        )
        return replace(self, tasks=tuple(tasks))

    def sources_of(self, step: Step) -> dict[str, str]:
        """Return the digests of the user's own functions that make and score a step's sample."""
        used = (step.cell.method, step.cell.drafter.policy, *step.plan.task.metrics)
        return {name: self.sources[name] for name in used if name in self.sources}

    def steps(self) -> Iterator[Step]:
        """Yield all steps in order, one per turn of a conversation."""
        for step in chain.from_iterable(self.batches()):
            yield from step.turns

    def batches(self) -> Iterator[list[Step]]:
        """Yield the steps that are decoded together, each time those of a block from one cell.

        The order is task, repeat, block, cell. The order of cells is shuffled for each block, so
        that no cell always follows the same other cell. With batch size 1 a block is one example.
        """
        for number, task in enumerate(self.tasks):
            size = self.block_size(task)
            for repeat in range(self.settings.repeats):
                for start in range(0, len(task.examples), size):
                    examples = range(len(task.examples))[start : start + size]
                    cells = list(range(len(task.cells)))
                    Random(f"{repeat}/{start}").shuffle(cells)
                    for cell in cells:
                        yield [self.step((number, repeat, example, cell)) for example in examples]

    def step(self, place: SampleIndex) -> Step:
        """Return the step with an index."""
        number, repeat, example, cell = place
        task = self.tasks[number]
        return Step(task, task.examples[example], task.cells[cell], repeat, place)

    def identify(self, step: Step, engine: str) -> SampleRecord:
        """Return the record of a step's sample before it is decoded."""
        shard, size = self.settings.shard_slice, self.block_size(step.plan)
        # Named by its first example: a resumed run may have blocks of several sizes.
        first = step.place[2] // size * (size if self.arms else 1)
        block = shard.start + shard.step * first
        # Without a block, times of texts that were decoded together are not compared.
        has_blocks = self.is_benchmark or (size > 1 and not self.settings.refill)
        further: dict[str, Any] = {"timing": step.cell.timing} if step.cell.timing else {}
        further |= {"block": block} if has_blocks else {}
        further |= {"cell_engine": step.cell.engine} if step.cell.engine else {}
        return SampleRecord(
            run_id="",  # the store knows it
            pair=self.pair.name,
            task=step.plan.task.name,
            **step.cell.columns(),
            temperature=self.settings.temperature,
            engine=step.cell.engine or engine_name(engine, self.arms),
            batch_size=self.batch_size(step.plan),
            session=step.cell.session,
            seed=self.settings.seed,
            repeat=step.repeat,
            sample_id=step.example.id,
            category=step.example.category or None,
            turn=step.turn,
            quality_metric=step.plan.task.metric and short_name(step.plan.task.metric),
            place=list(step.place),
            **further,
        )

    def added_to(self, run: Mapping[str, TaskConfig]) -> Plan:
        """Return this plan with sessions, for a folder with a run, whose tasks are given by name.

        Cells of the run keep their session. All others are measured together in a new session, in
        which ``autoregressive`` and ``sd`` are timed again, since times of different sessions
        cannot be compared. With ``refill`` no times are compared, and nothing is timed again.
        """
        timed = self.settings.refill is None
        recorded = {name: task.cells for name, task in run.items() if task.cells}
        tasks = [
            replace(task, cells=_in_sessions(task.cells, recorded[task.task.name], timed))
            if task.task.name in recorded
            else task
            for task in self.tasks
        ]
        added = sum(cell.session for task in tasks for cell in task.cells)
        note = "added cells are timed in a new session, together with autoregressive and sd"
        notes = dict.fromkeys([*self.notes, note] if added and timed else self.notes)
        return replace(self, tasks=tuple(tasks), notes=tuple(notes))

    def describe(self) -> dict[str, Any]:
        """Return the resolved configuration in plain values, for ``config.json``."""
        return {
            "specbench": __version__,
            "pair": {
                "name": self.pair.name,
                **{role: shown_path(model) for role, model in self.pair.models.items()},
                "target_revision": self.pair.target_revision,
                "draft_revision": self.pair.draft_revision,
            },
            "loading": self.loading.model_dump(exclude={"threads"}),  # of the environment
            "settings": self.settings.model_dump(),
            **({"servers": [arm.described for arm in self.arms]} if self.arms else {}),
            "samples_planned": len(self),
            # A resumed benchmark has the same ones: others would not be timed beside them.
            **({"systems": sum(len(t.cells) for t in self.tasks)} if self.is_benchmark else {}),
            "tasks": [task.describe() for task in self.tasks],
            "notes": list(self.notes),
            **({"sources": dict(self.sources)} if self.sources else {}),
        }


def most_in_flight(tasks: Iterable[TaskPlan]) -> int:
    """Return the most requests that a server gets at once; 1 without servers."""
    cells = (cell for task in tasks for cell in task.cells if cell.server)
    return max((int(cell.values.get(CONCURRENCY, 1)) for cell in cells), default=1)


def engine_name(engine: str, arms: Sequence[Arm]) -> str:
    """Return the name of a run's engines in tables; ``engine`` is empty if servers decode alone."""
    return ", ".join(filter(None, [engine, SERVERS if arms else ""]))


def _in_sessions(
    cells: Sequence[Cell], recorded: Sequence[CellConfig], timed: bool
) -> tuple[Cell, ...]:
    """Return cells with their session among recorded ones, then those timed again per session.

    Without ``timed``, nothing is timed again, so cells of a later session have no speed-up.
    """

    def name(cell: Mapping[str, Any]) -> str:
        identity = {key: value for key, value in cell.items() if key != "session"}
        if isinstance(head := identity.get("head"), Mapping):  # it may lie elsewhere
            identity["head"] = {**head, "path": ""}
        return json.dumps(identity, sort_keys=True)

    sessions: dict[str, int] = {}
    for cell in recorded:  # its own session comes before those in which it was timed again
        sessions.setdefault(name(cell.plain()), cell.session)
    new = 1 + max(sessions.values(), default=-1)
    first = dict.fromkeys(replace(c, session=0) for c in cells if c.timing != TIMED_BASELINE)
    added = [replace(cell, session=sessions.get(name(cell.describe()), new)) for cell in first]
    timed_again = [
        replace(cell, session=session, timing=cell.timing or TIMED_BASELINE)
        for session in range(1, 1 + max((cell.session for cell in added), default=0))
        for cell in added
        if timed and cell.session < session and (cell.timing or cell.method in _BASELINES)
    ]
    return (*added, *timed_again)


def own_sources(tasks: Iterable[TaskPlan]) -> dict[str, str]:
    """Return the digests of the source of the user's own rules, policies and metrics, by name."""
    digests: dict[str, str | None] = {}
    for task in tasks:
        methods = (cell.method for cell in task.cells if not cell.server)
        digests |= {name: get_method(name).digest for name in methods}
        policies = (cell.drafter.policy for cell in task.cells)
        digests |= {name: digest_of(name) for name in policies}
        digests |= {name: get_metric(name).digest for name in task.task.metrics}
    return {name: digest for name, digest in digests.items() if digest is not None}
