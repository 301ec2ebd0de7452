"""``examples.jsonl``: what a run's answers are compared with, kept beside them.

With it a run can be scored again where neither the models nor the data are at hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.lines import Foreign, parse_line, read_lines
from specbench.files import write_atomically

EXAMPLES = "examples.jsonl"
TASK = "task"

_REQUIRED = [f.name for f in fields(Example) if f.default is MISSING]
_KNOWN = {f.name for f in fields(Example)}


def write_examples(folder: Path, tasks: Mapping[str, Iterable[Example]]) -> None:
    """Write the examples of every task, a line each.

    Args:
        folder: The run's folder.
        tasks: Examples by the name of their task.

    Raises:
        SpecbenchError: The file cannot be written.
    """
    lines = (
        json.dumps({TASK: task, **asdict(example)}, ensure_ascii=False) + "\n"
        for task, examples in tasks.items()
        for example in examples
    )
    write_atomically(folder / EXAMPLES, "".join(lines))


def read_examples(folder: Path) -> dict[str, dict[str, Example]]:
    """Return the examples of a run by the name of their task and their id.

    Raises:
        UsageError: There is no such file, or a line of it is no example.
    """
    path = folder / EXAMPLES
    if not path.exists():
        raise UsageError(
            f"{folder} holds no {EXAMPLES}, so its texts have nothing to be compared with: "
            "give the folder of a run of this version of specbench"
        )
    found: dict[str, dict[str, Example]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            task, example = _parse(line)
        except Foreign as error:
            raise UsageError(
                f"{path}, line {number} is no example of a run ({error}): run again"
            ) from error
        found.setdefault(task, {})[example.id] = example
    return found


def _parse(line: bytes) -> tuple[str, Example]:
    values = parse_line(line)
    for name in (TASK, *_REQUIRED):
        if name not in values:
            raise Foreign(f"it has no `{name}`")
    task = values.pop(TASK)
    for name, value in {TASK: task, **values}.items():
        if name != TASK and name not in _KNOWN:
            raise Foreign(f"`{name}` is unknown")
        if not _fits(name, value):
            raise Foreign(f"`{name}` is of the wrong type")
    return task, Example(**{**values, "tests": tuple(values.get("tests", ()))})


def _fits(name: str, value: Any) -> bool:
    if name == "tests":
        return isinstance(value, list) and all(isinstance(test, str) for test in value)
    return isinstance(value, str) or (name == "reference" and value is None)
