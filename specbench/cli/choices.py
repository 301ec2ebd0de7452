"""From what the user typed to methods, pairs, tasks and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from specbench.errors import UsageError
from specbench.heads.registry import expand_family
from specbench.methods.registry import METHODS
from specbench.methods.registry import PAPER as PAPER_METHODS
from specbench.metrics import METRICS
from specbench.pairs.registry import PairSpec, custom_pair, get_pair, with_draft
from specbench.tasks.dataset import Dataset, Sourcing
from specbench.tasks.prompts import prompts_task
from specbench.tasks.task import Task, default_task_names, load_task, task_names

ALL, PAPER = "all", "paper"
METHOD_GROUPS = {PAPER: PAPER_METHODS, ALL: tuple(METHODS)}
DEFAULT_PAIR = "mini"
REFERENCE_METRICS = [metric.name for metric in METRICS.values() if metric.needs == "reference"]
DEFAULT_REFERENCE_METRIC = "rouge2"

Number = TypeVar("Number", int, float)


def choose_methods(
    typed: Sequence[str] | None, default: Iterable[str] = PAPER_METHODS
) -> tuple[list[str], set[str]]:
    """Return the methods to run, and those of them the user did not ask for by name.

    Args:
        typed: Values of --method.
        default: The methods where none was typed.
    """
    names = split("--method", typed or [])
    chosen = _spelt_out(names, METHOD_GROUPS) if names else list(default)
    return chosen, set(chosen) - set(names)


def choose_pair(name: str | None, target: str | None, draft: str | None) -> PairSpec:
    """Return the pair of that name, perhaps with another draft, or one of two models.

    Raises:
        UsageError: An unknown pair, a target beside a pair, or a target without a draft.
    """
    if target is None:
        pair = get_pair(name or DEFAULT_PAIR)
        return pair if draft is None else with_draft(pair, draft)
    if name is not None:
        raise UsageError("--pair and --target name the target twice: give one of the two")
    if draft is None:
        raise UsageError("--draft is missing: --target goes with a draft")
    return custom_pair(target, draft)


def choose_tasks(typed: Sequence[str] | None, sourcing: Sourcing) -> list[Task]:
    """Return the tasks of those names, or the bundled ones where none was typed.

    Args:
        typed: Values of --task.
        sourcing: Where examples come from.

    Raises:
        UsageError: An unknown task, or data that none of them or more than one data set would have
            to be taken from.
    """
    names = split("--task", typed or [])
    chosen = _spelt_out(names, {ALL: task_names()}) if names else default_task_names()
    tasks = [load_task(name, sourcing) for name in chosen]
    _check_use(sourcing, tasks)
    return tasks


def choose_prompts(
    typed: Sequence[str] | None, prompts: Sequence[Path] | None, metric: str | None
) -> list[Task]:
    """Return the tasks made of prompt files.

    Raises:
        UsageError: An unknown metric, no file or an unusable one, or tasks beside them.
    """
    if not prompts:
        raise UsageError("--metric belongs to --prompts: a task has metrics of its own")
    if typed:
        raise UsageError("--prompts takes the place of --task: give one of the two")
    return [_with_metric(prompts_task(path), metric) for path in prompts]


def _check_use(sourcing: Sourcing, tasks: Iterable[Task]) -> None:
    """Refuse options of data that these tasks would ignore, or could not all mean."""
    sets = {task.source.repository for task in tasks if isinstance(task.source, Dataset)}
    given = {"--data": sourcing.folder, "--data-revision": sourcing.revision}
    for option, value in given.items():
        if value is not None and not sets:
            raise UsageError(f"{option} goes with a task that has a data set: choose one by --task")
    if sourcing.revision is not None and len(sets) > 1:
        raise UsageError(
            f"--data-revision is of one data set, not of {', '.join(sorted(sets))}: run their "
            "tasks one by one"
        )


def choose_heads(typed: Sequence[str] | None) -> list[str] | None:
    """Return the heads of those names, a family by its members; None where none was typed."""
    names = split("--head", typed or [])
    return [member for name in names for member in expand_family(name)] or None


def parse_numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers of a comma list, each once, in their order.

    Raises:
        UsageError: Something between the commas is no number, or nothing is there.
    """
    try:
        return list(dict.fromkeys(kind(part) for part in split(option, [text])))
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{option} cannot be {text!r}: give {what} with commas between") from error


def _with_metric(task: Task, metric: str | None) -> Task:
    scored = any(row.reference for row in task.examples("test", None))
    if metric is None:
        return replace(task, metrics=(DEFAULT_REFERENCE_METRIC,) if scored else ())
    if metric not in REFERENCE_METRICS:
        raise UsageError(f"unknown --metric {metric!r}: give one of {', '.join(REFERENCE_METRICS)}")
    if not scored:
        raise UsageError(f"{task.path} has no `reference` column, which --metric {metric} needs")
    return replace(task, metrics=(metric,))


def split(option: str, values: Sequence[str]) -> list[str]:
    """Return the names of comma lists, each once, in their order.

    Raises:
        UsageError: Something was typed and holds no name.
    """
    parts = [part.strip() for value in values for part in value.split(",")]
    names = list(dict.fromkeys(filter(None, parts)))
    # An unset variable in a script must not silently mean everything.
    if values and not names:
        raise UsageError(f"{option} is empty: give at least one value or leave the option out")
    return names


def _spelt_out(names: Iterable[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """Put the members of a group in the place of its name."""
    return list(dict.fromkeys(inner for name in names for inner in groups.get(name, (name,))))
