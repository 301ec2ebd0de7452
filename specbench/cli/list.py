"""``specbench list``: what can be measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.table import Table

from specbench.cli.options import Json, completer
from specbench.cli.output import console, print_json
from specbench.errors import UsageError
from specbench.experiment.plan import shown_path
from specbench.methods.registry import METHODS, Method
from specbench.pairs.registry import pairs
from specbench.tasks.task import load_task, task_names

Row = dict[str, Any]


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="methods, pairs or tasks.",
            autocompletion=completer(lambda: LISTS),
        ),
    ],
    json: Json = False,
) -> None:
    """List the methods, pairs or tasks, each with what a user must know of it."""
    if what not in LISTS:
        raise UsageError(f"there is no list of {what!r}: choose one of {', '.join(LISTS)}")
    rows = LISTS[what]()
    if json:
        print_json(rows)
    else:
        console().print(_table(rows))


def _methods() -> list[Row]:
    return [
        {
            "name": method.name,
            "summary": method.summary,
            "parameters": _parameters(method),
            "source": method.source,
        }
        for method in METHODS.values()
    ]


def _parameters(method: Method) -> list[str]:
    """Every parameter with its default and what it may be; one entry per rule where they differ."""
    return [
        " ".join(
            [
                p.name,
                *([] if p.default is None else [f"= {p.default}"]),
                *([f"with {p.when[1]}"] if p.when else []),
                f"({p.permitted})",
            ]
        )
        for p in method.parameters
    ]


def _pairs() -> list[Row]:
    return [
        {
            "name": pair.name,
            "target": shown_path(pair.target),
            "draft": shown_path(pair.draft),
            "description": pair.description,
        }
        for pair in pairs().values()
    ]


def _tasks() -> list[Row]:
    return [
        {
            "name": task.name,
            "metrics": list(task.metrics),
            "max_new_tokens": task.max_new_tokens,
            "version": task.version,
            "description": task.description,
        }
        for task in map(load_task, task_names())
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {"methods": _methods, "pairs": _pairs, "tasks": _tasks}


def _table(rows: list[Row]) -> Table:
    table = Table()
    for column in rows[0]:
        table.add_column(column.replace("_", " "), no_wrap=column == "name")
    for row in rows:
        table.add_row(*("\n".join(v) if isinstance(v, list) else str(v) for v in row.values()))
    return table
