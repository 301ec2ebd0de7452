"""What differs between two runs: settings, tasks and facts of the environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from specbench.runs.run import ENVIRONMENT, Run

# Keys that say nothing about what was measured, and keys that differ between any two runs.
_IGNORED = {
    *("notes", "progress", "samples_planned", "examples", "cells"),
    *("command", "warm_ups", "first_prompts", "gpu_states", "gpus_at_the_end"),
    "compared_with_eager",
}
_ABSENT = object()  # differs from null, which is an option that was not given
_MACHINE = ("platform", "cpu", "torch.threads", "torch.gpus")  # facts that affect times


class Difference(NamedTuple):
    """A difference between two configurations."""

    name: str  # path of the key, separated by dots
    first: Any
    second: Any


def run_differences(first: Run, second: Run) -> list[Difference]:
    """Return the settings, tasks and facts of the environment that two runs do not share.

    Cells and numbers of examples are left out, and so are facts that only one run has.
    """
    names = first.tasks.keys() & second.tasks.keys()

    def facts(run: Run) -> dict[str, Any]:
        tasks = {name: task for name, task in run.tasks.items() if name in names}
        return {**run.config, "tasks": tasks, "environment": run.environment}

    differences = differences_of(facts(first), facts(second), _IGNORED, absent=_ABSENT)
    return [difference for difference in differences if _ABSENT not in difference[1:]]


def why_untimed(first: Run, second: Run) -> str | None:
    """Return why the times of two runs cannot be compared, or None if they can."""
    environments = first.environment, second.environment
    if not all(environments):
        return f"a run has no {ENVIRONMENT}"
    differences = differences_of(*environments, set())
    if any(difference.name.startswith(_MACHINE) for difference in differences):
        return "they were measured on different machines"
    days = [str(environment.get("started"))[: len("2026-01-01")] for environment in environments]
    return None if days[0] == days[1] else f"they were measured on {days[0]} and {days[1]}"


def differences_of(
    first: Any, second: Any, ignored: set[str], name: str = "", absent: Any = None
) -> Iterator[Difference]:
    """Yield the differences between two configurations, apart from the keys in ``ignored``.

    ``absent`` is the value of a key that only one of them has.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [key for key in {**first, **second} if key not in ignored]:
            key_path = f"{name}.{key}" if name else key
            values = first.get(key, absent), second.get(key, absent)
            yield from differences_of(*values, ignored, key_path, absent)
    elif first != second:
        yield Difference(name, first, second)
