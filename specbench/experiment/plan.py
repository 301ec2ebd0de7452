"""The plan of a run: which cells are measured on which examples, and in which order.

A cell is one row of the result: a method with its parameters and draft length. All cells of a
task take their turn on each example before the next example begins, so that a machine that grows
slower or faster during the run does so for every cell alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.settings import Settings, require, require_at_least
from specbench.experiment.variants import Variant
from specbench.heads.registry import HeadFile, describe_heads, facts, find_head
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.metrics import get_metric
from specbench.pairs.registry import PairSpec
from specbench.tasks.task import Listed, Task
from specbench.version import __version__

Place = tuple[int, int, int, int]  # numbers of task, repeat, example and cell

GROUP = 4  # batches that are queued together
DEFAULT_LIMIT = 20  # examples of a task; enough to see the effect, fast on two CPU cores


@dataclass(frozen=True)
class Cell:
    """One configuration to measure.

    Attributes:
        method: Name of the method.
        parameters: Its resolved parameters by name; a head is named by its folder.
        draft_length: Tokens drafted per round; 0 for ``autoregressive``.
    """

    method: str
    parameters: tuple[tuple[str, Any], ...]
    draft_length: int

    def describe(self) -> dict[str, Any]:
        """Return the cell in plain values, for ``config.json``."""
        parameters = {
            name: {"name": value.name, "path": shown_path(value.path), **facts(value)}
            if isinstance(value, HeadFile)
            else value
            for name, value in self.parameters
        }
        return {"method": self.method, **parameters, "draft_length": self.draft_length}


@dataclass(frozen=True)
class TaskPlan:
    """The examples of one task and the cells that decode each of them."""

    task: Task
    examples: tuple[Example, ...]
    cells: tuple[Cell, ...]
    max_new_tokens: int

    def describe(self) -> dict[str, Any]:
        """Return the work on this task in plain values, for ``config.json``."""
        return {
            "name": self.task.name,
            "version": self.task.version,
            "metrics": list(self.task.metrics),
            "prompt_format": self.task.prompt_format,
            "data": self.task.provenance(),
            "stop": list(self.task.stop),
            "max_new_tokens": self.max_new_tokens,
            "examples": len(self.examples),
            "cells": [cell.describe() for cell in self.cells],
        }


@dataclass(frozen=True)
class Step:
    """One decode: an example, by a cell, for the ``repeat``-th time.

    Attributes:
        plan: The task's part of the plan.
        example: What is decoded.
        cell: By which method.
        repeat: For which time, from 0.
        place: Numbers of task, repeat, example and cell; samples are sorted by them.
    """

    plan: TaskPlan
    example: Example
    cell: Cell
    repeat: int
    place: Place

    @property
    def sample_key(self) -> str:
        """Names the stream of draws: alike for all cells, so that they can be compared by pairs."""
        return f"{self.plan.task.name}/{self.example.id}/{self.repeat}"


@dataclass(frozen=True)
class Plan:
    """Everything a run does.

    Attributes:
        pair: The models.
        loading: How they are loaded.
        settings: What all cells share.
        tasks: The work, task by task.
        may_execute: Generated programs may be run to score them.
        notes: What was left out and why, and which heads are used, a sentence each.
    """

    pair: PairSpec
    loading: Loading
    settings: Settings
    tasks: tuple[TaskPlan, ...]
    may_execute: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.settings.repeats * sum(len(t.examples) * len(t.cells) for t in self.tasks)

    @property
    def executes(self) -> bool:
        """True where generated programs will be run."""
        return self.may_execute and any(is_executed(task.task) for task in self.tasks)

    def steps(self) -> Iterator[Step]:
        """Yield every decode in its order."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[Step]]:
        """Yield the steps in groups that are decoded side by side, each of one cell.

        Their order is task, repeat, example, cell; the cells take their turns in an order that is
        drawn anew for each example, so that none is always measured behind the same one. With a
        batch size of 1 every step is a group of its own; else a group is several times the batch,
        so that texts that end make room for others, and cells still take turns.
        """
        size = self.settings.batch_size
        size *= GROUP if size > 1 else 1
        for number, task in enumerate(self.tasks):
            for repeat in range(self.settings.repeats):
                for start in range(0, len(task.examples), size):
                    chosen = list(enumerate(task.examples))[start : start + size]
                    turns = list(range(len(task.cells)))
                    Random(f"{repeat}/{start}").shuffle(turns)
                    for at in turns:
                        yield [
                            Step(task, example, task.cells[at], repeat, (number, repeat, place, at))
                            for place, example in chosen
                        ]

    def step(self, place: Place) -> Step:
        """Return the step at a place."""
        number, repeat, example, cell = place
        task = self.tasks[number]
        return Step(task, task.examples[example], task.cells[cell], repeat, place)

    def describe(self) -> dict[str, Any]:
        """Return the resolved configuration in plain values, for ``config.json``."""
        return {
            "specbench": __version__,
            "pair": {
                "name": self.pair.name,
                "target": shown_path(self.pair.target),
                "draft": shown_path(self.pair.draft),
                "target_revision": self.loading.target_revision or self.pair.target_revision,
                "draft_revision": self.loading.draft_revision or self.pair.draft_revision,
            },
            "loading": asdict(self.loading),
            "settings": asdict(self.settings),
            "samples_planned": len(self),
            "tasks": [task.describe() for task in self.tasks],
            "notes": list(self.notes),
        }


def shown_path(path: str | Path) -> str:
    """Return a path below the working directory relative to it, and any other text as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def build_plan(
    pair: PairSpec,
    tasks: Sequence[Task],
    variants: Sequence[Variant],
    draft_lengths: Sequence[int],
    settings: Settings,
    *,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    limit: int | None = None,
    may_execute: bool = False,
    dispensable: Collection[str] = (),
) -> Plan:
    """Lay out a run: find the heads, choose the examples, check what can be checked.

    Args:
        pair: The models.
        tasks: Where the examples come from.
        variants: Methods with their parameters.
        draft_lengths: Tokens drafted per round; each variant that drafts runs with each of them.
        settings: What all cells share.
        loading: How the models are loaded.
        limit: Examples per task; None takes ``DEFAULT_LIMIT`` of a task and all of a prompt file.
        may_execute: Generated programs may be run to score them.
        dispensable: Methods left out, with a note, on tasks for which the pair has no head.

    Raises:
        UsageError: A number out of range, a missing head, or nothing left to run.
    """
    require_at_least(1, "--limit", limit)
    for length in draft_lengths:
        require_at_least(1, "--draft-length", length)
    for name, number in Counter(task.name for task in tasks).items():
        require(number == 1, f"two tasks are called {name}: give one of them another `name`")
    plans = []
    headless: dict[str, list[str]] = {}
    for task in tasks:
        cells = []
        for method, parameters in variants:
            try:
                complete = _with_head(parameters, pair, task)
            except UsageError:
                if method not in dispensable or parameters["head"]:
                    raise
                headless.setdefault(method, []).append(task.name)
                continue
            lengths = (0,) if method == AUTOREGRESSIVE else draft_lengths
            cells += [Cell(method, tuple(complete.items()), length) for length in lengths]
        whole = limit is None and isinstance(task.source, Listed)
        count = None if whole else limit or DEFAULT_LIMIT
        examples = task.examples("test", count, settings.seed)
        budget = settings.max_new_tokens or task.max_new_tokens
        plans.append(TaskPlan(task, tuple(examples), tuple(dict.fromkeys(cells)), budget))
    notes = [*_left_out(headless, pair), *_heads_used(plans), *_without_reference(plans)]
    if not may_execute:
        notes += _not_executed(tasks)
    plan = Plan(pair, loading, settings, tuple(plans), may_execute, tuple(notes))
    require(len(plan) > 0, f"nothing to run: {'; '.join(plan.notes) or 'choose a method'}")
    return plan


def _without_reference(plans: Sequence[TaskPlan]) -> Iterator[str]:
    """Say of which tasks some prompts cannot be scored."""
    for plan in plans:
        if any(get_metric(name).needs == "reference" for name in plan.task.metrics):
            missing = sum(not example.reference for example in plan.examples)
            if missing:
                yield (
                    f"{missing} of {len(plan.examples)} prompts of {plan.task.name} have no "
                    "reference: its quality is that of the others"
                )


def _with_head(parameters: Mapping[str, Any], pair: PairSpec, task: Task) -> dict[str, Any]:
    if "head" not in parameters:
        return dict(parameters)
    given = parameters["head"]
    if not isinstance(given, HeadFile):
        given = find_head(pair, task.name, given, trainable=not isinstance(task.source, Listed))
    return {**parameters, "head": given}


def _left_out(headless: Mapping[str, Sequence[str]], pair: PairSpec) -> Iterator[str]:
    for method, tasks in headless.items():
        yield (
            f"{method} is left out on {', '.join(tasks)}: pair {pair.name} has no head there "
            "(train one with `specbench train`, or name one with --head)"
        )


def _not_executed(tasks: Sequence[Task]) -> Iterator[str]:
    """Say for which tasks quality waits until the user allows code to be run."""
    names = [task.name for task in tasks if is_executed(task)]
    if names:
        yield (
            f"programs of {', '.join(names)} are not run, as a model wrote them: add "
            "--allow-code-execution, or score the run later with `specbench score RUN "
            "--allow-code-execution`"
        )


def is_executed(task: Task) -> bool:
    """Tell whether scoring a task's answers means running them."""
    return any(get_metric(name).executes for name in task.metrics)


def _heads_used(plans: Sequence[TaskPlan]) -> Iterator[str]:
    """Say which head serves each task, in one sentence."""
    used = [
        (plan.task.name, value)
        for plan in plans
        for cell in plan.cells
        for _, value in cell.parameters
        if isinstance(value, HeadFile)
    ]
    if used:
        yield f"heads: {describe_heads(used)}"
