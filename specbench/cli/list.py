"""``specbench list``: what can be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.analysis.columns import MEASURED, METRICS, dictionary
from specbench.cli.generate import completer
from specbench.cli.options import Json
from specbench.cli.output import print_json, print_table
from specbench.errors import UsageError
from specbench.experiment.plan import shown_path
from specbench.methods.method import Parameter
from specbench.methods.registry import METHODS
from specbench.pairs.registry import pairs
from specbench.table import Column, Table
from specbench.tasks.definition import Definition
from specbench.tasks.task import load_task, task_names, task_path
from specbench.training.recipe import HeadRecipe
from specbench.validation import Problem, load_toml, problems, quoted

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
    """List methods, pairs, tasks or columns of tables, with descriptions."""
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
        print_table(_table(rows))


def _validate(files: Iterable[str], json: bool) -> None:
    """Print what is wrong with task files; ends the command with code 2 where anything is."""
    found = {shown_path(path): _problems(path) for path in map(task_path, files)}
    rows = [
        {"file": file, "key": problem.key, "problem": problem.what}
        for file, wrong in found.items()
        for problem in wrong
    ]
    if json:
        print_json(rows)
    else:
        for file, wrong in found.items():
            for key, what in wrong or [Problem("", "ok")]:
                print(f"{file}: {quoted(key)} {what}" if key else f"{file}: {what}")
    if rows:
        raise typer.Exit(2)


def _problems(path: Path) -> list[Problem]:
    """Every mistake in a task file; its recipe of a head is checked here, too."""
    try:
        values = load_toml(path, "task file")
    except UsageError as error:
        return [Problem("", str(error).removeprefix(f"{path}: "))]
    training = values.get("training")
    wrong = problems(HeadRecipe, training) if isinstance(training, dict) else []
    in_table = [Problem(f"training.{problem.key}", problem.what) for problem in wrong]
    return problems(Definition, values) + in_table


def _picked(things: Iterable[object], *names: str, **changed: Callable[[Any], object]) -> list[Row]:
    """Return rows of attributes, some of them changed."""
    return [
        {name: changed.get(name, lambda value: value)(getattr(thing, name)) for name in names}
        for thing in things
    ]


def _describe(parameter: Parameter) -> str:
    """Name a parameter with its default, the rule it goes with, and what it may be."""
    default = "" if parameter.default is None else f"= {parameter.default}"
    rule = f"with {parameter.when[1]}" if parameter.when else ""
    return " ".join(filter(None, (parameter.name, default, rule, f"({parameter.permitted})")))


def _print_columns(rows: list[Row]) -> None:
    """Print a table for each group of tables that share columns."""
    for tables, group in groupby(rows, lambda row: row["tables"]):
        shown = [{key: value for key, value in row.items() if key != "tables"} for row in group]
        print_table(_table(shown, _TITLES.get(tables[0], ", ".join(tables))))


LISTS: dict[str, Callable[[], list[Row]]] = {
    "methods": lambda: _picked(
        METHODS.values(),
        *("name", "summary", "parameters", "source"),
        parameters=lambda parameters: [_describe(parameter) for parameter in parameters],
    ),
    "pairs": lambda: _picked(
        pairs().values(),
        *("name", "target", "draft", "description"),
        target=shown_path,
        draft=shown_path,
    ),
    "tasks": lambda: _picked(
        map(load_task, task_names()),
        *("name", "metrics", "max_new_tokens", "version", "description"),
    ),
    COLUMNS: lambda: [column._asdict() for column in dictionary()],
}


def _table(rows: list[Row], title: str = "") -> Table:
    columns = [
        Column(name.replace("_", " "), align="right" if name == "max_new_tokens" else "left")
        for name in rows[0]
    ]
    lines = [
        ["\n".join(v) if isinstance(v, list | tuple) else str(v) for v in row.values()]
        for row in rows
    ]
    return Table(title, columns, lines)
