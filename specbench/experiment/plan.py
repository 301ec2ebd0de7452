"""The plan of a run: which cells are measured on which examples, and in which order.

A cell is one row of the result: a method with its parameters and draft length. All cells of a
task take their turn on each example before the next example begins, so that a machine that grows
slower or faster during the run does so for every cell alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench import __version__
from specbench.errors import UsageError
from specbench.experiment.variants import AUTOREGRESSIVE, Variant
from specbench.heads.registry import HeadFile, describe_heads, facts, find_head
from specbench.pairs.registry import PairSpec
from specbench.tasks.example import Example
from specbench.tasks.task import Task

DEFAULT_LIMIT = 20  # examples of a bundled task; enough to see the effect, fast on two CPU cores
DEFAULT_DRAFT_LENGTH = 5  # the paper's N


@dataclass(frozen=True)
class Settings:
    """What all cells of a run share.

    Attributes:
        temperature: 0 is greedy.
        top_k: Keep the k likeliest tokens; None keeps all.
        top_p: Keep the likeliest tokens of this mass in total; None keeps all.
        seed: Decides the examples and every draw.
        repeats: Times each example is decoded by each cell, with fresh draws.
        device: ``auto``, or a torch device such as ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: ``auto`` is the pair's own number format.

    Raises:
        UsageError: A value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repeats: int = 1
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            f"--temperature must be 0 or more, not {self.temperature:g}",
        )
        _require(
            self.top_p is None or 0 < self.top_p <= 1,
            f"--top-p must be above 0 and at most 1, not {self.top_p}",
        )
        _require_at_least(1, "--top-k", self.top_k)
        _require_at_least(0, "--seed", self.seed)
        _require_at_least(1, "--repeats", self.repeats)


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
            "stop": list(self.task.stop),
            "max_new_tokens": self.max_new_tokens,
            "examples": len(self.examples),
            "cells": [cell.describe() for cell in self.cells],
        }


@dataclass(frozen=True)
class Step:
    """One decode: an example, by a cell, for the ``repeat``-th time."""

    plan: TaskPlan
    example: Example
    cell: Cell
    repeat: int

    @property
    def sample_key(self) -> str:
        """Names the stream of draws: alike for all cells, so that they can be compared by pairs."""
        return f"{self.plan.task.name}/{self.example.id}/{self.repeat}"


@dataclass(frozen=True)
class Plan:
    """Everything a run does.

    Attributes:
        pair: The models.
        settings: What all cells share.
        tasks: The work, task by task.
        notes: What was left out and why, and which heads are used, a sentence each.
    """

    pair: PairSpec
    settings: Settings
    tasks: tuple[TaskPlan, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.settings.repeats * sum(len(t.examples) * len(t.cells) for t in self.tasks)

    @property
    def dtype(self) -> str:
        """Number format asked for: the user's, else the pair's own."""
        return self.pair.dtype if self.settings.dtype == "auto" else self.settings.dtype

    def steps(self) -> Iterator[Step]:
        """Yield every decode in its order: task, repeat, example, cell."""
        for task in self.tasks:
            for repeat in range(self.settings.repeats):
                for example in task.examples:
                    for cell in task.cells:
                        yield Step(task, example, cell, repeat)

    def describe(self) -> dict[str, Any]:
        """Return the resolved configuration in plain values, for ``config.json``."""
        return {
            "specbench": __version__,
            "pair": {
                "name": self.pair.name,
                "target": shown_path(self.pair.target),
                "draft": shown_path(self.pair.draft),
            },
            "settings": {**asdict(self.settings), "dtype": self.dtype},
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
    limit: int | None = None,
    max_new_tokens: int | None = None,
    dispensable: Collection[str] = (),
) -> Plan:
    """Lay out a run: find the heads, choose the examples, check what can be checked.

    Args:
        pair: The models.
        tasks: Where the examples come from.
        variants: Methods with their parameters.
        draft_lengths: Tokens drafted per round; each variant that drafts runs with each of them.
        settings: What all cells share.
        limit: Examples per task; None takes ``DEFAULT_LIMIT`` of a bundled task and all of a file.
        max_new_tokens: Limit of an answer; None takes each task's own.
        dispensable: Methods left out, with a note, on tasks for which the pair has no head.

    Raises:
        UsageError: A number out of range, a missing head, or nothing left to run.
    """
    _require_at_least(1, "--limit", limit)
    _require_at_least(1, "--max-new-tokens", max_new_tokens)
    for length in draft_lengths:
        _require_at_least(1, "--draft-length", length)
    plans = []
    headless: dict[str, list[str]] = {}
    for task in tasks:
        cells = []
        for method, parameters in variants:
            try:
                complete = _with_head(parameters, pair, task.name)
            except UsageError:
                if method not in dispensable or parameters["head"]:
                    raise
                headless.setdefault(method, []).append(task.name)
                continue
            lengths = (0,) if method == AUTOREGRESSIVE else draft_lengths
            cells += [Cell(method, tuple(complete.items()), length) for length in lengths]
        count = DEFAULT_LIMIT if limit is None and task.generator else limit
        examples = task.examples("test", count, settings.seed)
        budget = max_new_tokens or task.max_new_tokens
        plans.append(TaskPlan(task, tuple(examples), tuple(dict.fromkeys(cells)), budget))
    notes = (*_left_out(headless, pair), *_heads_used(plans))
    plan = Plan(pair, settings, tuple(plans), notes)
    _require(len(plan) > 0, f"nothing to run: {'; '.join(plan.notes) or 'choose a method'}")
    return plan


def _with_head(parameters: Mapping[str, Any], pair: PairSpec, task: str) -> dict[str, Any]:
    if "head" not in parameters:
        return dict(parameters)
    given = parameters["head"]
    found = given if isinstance(given, HeadFile) else find_head(pair, task, given)
    return {**parameters, "head": found}


def _left_out(headless: Mapping[str, Sequence[str]], pair: PairSpec) -> Iterator[str]:
    for method, tasks in headless.items():
        yield (
            f"{method} is left out on {', '.join(tasks)}: pair {pair.name} has no head there "
            "(train one with `specbench train`, or name one with --head)"
        )


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


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


def _require_at_least(low: int, option: str, value: int | None) -> None:
    _require(value is None or value >= low, f"{option} must be {low} or more, not {value}")
