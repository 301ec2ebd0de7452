"""``specbench list``: what can be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specbench.analysis.columns import MEASURED, METRICS, dictionary
from specbench.cli.options.common import Json, completer
from specbench.cli.output import console, print_json
from specbench.errors import UsageError
from specbench.experiment.plan import shown_path
from specbench.methods.method import Method
from specbench.methods.registry import METHODS
from specbench.pairs.registry import pairs
from specbench.tasks.definition import Problem, read_definition
from specbench.tasks.task import load_task, task_names, task_path
from specbench.training.recipe import wrong_training

Row = dict[str, Any]

COLUMNS = "columns"
# Columns that belong to a table only where there is something to put into them.
_TITLES = {
    MEASURED: "samples, after the others: metrics beside that of quality",
    METRICS: "summary, what `metric` may be; cells, as columns with their <metric>_low and _high",
}


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="methods, pairs, tasks or columns.",
            autocompletion=completer(lambda: LISTS),
        ),
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="With --validate: tasks, or TOML files of tasks.",
            show_default="the bundled tasks",
        ),
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Instead of a list of tasks: every mistake in their files."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List methods, pairs, tasks or columns of tables, each with what a user must know of it."""
    if what not in LISTS:
        raise UsageError(f"there is no list of {what!r}: choose one of {', '.join(LISTS)}")
    if validate:
        if what != "tasks":
            raise UsageError(f"--validate looks at tasks, not at {what}: list tasks")
        _validate(files or task_names(), json)
        return
    if files:
        raise UsageError("files go with --validate: add it, or leave the files out")
    rows = LISTS[what]()
    if json:
        print_json(rows)
    elif what == COLUMNS:
        _print_columns(rows)
    else:
        console().print(_table(rows))


def _validate(files: Iterable[str], json: bool) -> None:
    """Print what is wrong with task files; ends the command with code 2 where anything is."""
    found = {shown_path(path): list(_problems(path)) for path in map(task_path, files)}
    rows = [
        {"file": file, "key": problem.key, "problem": problem.what}
        for file, problems in found.items()
        for problem in problems
    ]
    if json:
        print_json(rows)
    else:
        for file, problems in found.items():
            for line in map(str, problems) if problems else ["ok"]:
                print(f"{file}: {line}")
    if rows:
        raise typer.Exit(2)


def _problems(path: Path) -> Iterator[Problem]:
    try:
        values, problems = read_definition(path)
        yield from problems
        if isinstance(training := values.get("training"), dict):
            yield from wrong_training(training)
    except UsageError as error:
        yield Problem("", str(error).removeprefix(f"{path}: "))


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


def _columns() -> list[Row]:
    return [
        {
            "tables": list(column.tables),
            "name": column.name,
            "type": column.type,
            "unit": column.unit,
            "meaning": column.meaning,
            "blank": column.blank,
            "example": column.example,
        }
        for column in dictionary()
    ]


def _print_columns(rows: list[Row]) -> None:
    """Print a table for each group of tables that share columns."""
    for tables, group in groupby(rows, lambda row: row["tables"]):
        shown = [{key: value for key, value in row.items() if key != "tables"} for row in group]
        console().print(_table(shown, _TITLES.get(tables[0], ", ".join(tables))))


LISTS: dict[str, Callable[[], list[Row]]] = {
    "methods": _methods,
    "pairs": _pairs,
    "tasks": _tasks,
    COLUMNS: _columns,
}


def _table(rows: list[Row], title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column.replace("_", " "), no_wrap=column == "name")
    for row in rows:
        table.add_row(*("\n".join(v) if isinstance(v, list) else str(v) for v in row.values()))
    return table
