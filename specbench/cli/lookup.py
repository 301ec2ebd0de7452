"""``specbench list`` and ``docs``: what there is, by name, and the pages beside the code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

import specbench
from specbench.analysis.figures import FIGURES, load_figure
from specbench.analysis.tables.table import Column, Table
from specbench.cli.generate import completer, grouped
from specbench.cli.options import JsonOutput
from specbench.cli.output import print_json, print_table
from specbench.decoding.drafters.registry import DRAFTERS
from specbench.decoding.heads.registry import listed_heads
from specbench.engine.pairs import pairs
from specbench.errors import UsageError, unknown
from specbench.methods.method import Parameter
from specbench.methods.registry import METHODS
from specbench.runs.tables import ColumnMeaning, dictionary
from specbench.tasks.metrics import METRICS
from specbench.tasks.task import definitions_folder, load_task, task_names

Row = dict[str, Any]

# Titles for columns that a table has only if it has values for them.
_TITLES = {
    "measured": "samples, last columns: metrics other than the quality metric",
    "metrics": "values of `metric` in summary; columns of cells, with <metric>_low and _high",
}
_OF_TASKS = ("name", "metrics", "max_new_tokens", "version", "description")
# Headings are only for other tables.
_OF_COLUMNS = [name for name in ColumnMeaning._fields if name != "heading"]
WIDTH = 100  # of text; longer lines are hard to read


@grouped
def list_(
    options: JsonOutput,
    listing: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="methods, drafters, pairs, heads, tasks, metrics, figures or columns.",
            autocompletion=completer(lambda: LISTS),
            show_default="how many of each",
        ),
    ] = None,
) -> None:
    """List methods, drafters, pairs, heads, tasks, metrics, figures or columns of tables."""
    if listing is not None and listing not in LISTS:
        raise UsageError(unknown("list", listing, LISTS))
    counts = ({"list": name, "entries": len(entries())} for name, entries in LISTS.items())
    rows = list(counts) if listing is None else LISTS[listing]()
    if options.as_json:
        print_json(rows)
        return
    title = "specbench list NAME prints one" if listing is None else ""
    # Tables with the same columns are listed together.
    for tables, group in groupby(rows, lambda row: row.pop("tables", ("",))):
        print_table(_table(list(group), title or _TITLES.get(tables[0], ", ".join(tables))))


def _picked(values: Iterable[object], *names: str) -> list[Row]:
    """Return one row of attributes per object."""
    return [{name: getattr(value, name) for name in names} for value in values]


def _described(parameter: Parameter) -> str:
    """Describe a parameter: name, default, the rule it applies to, permitted values."""
    default = "" if parameter.default is None else f"= {parameter.default}"
    name, value = parameter.when or ("", "")
    rule = f"without {name}" if value is None else f"with {value}" if parameter.when else ""
    return " ".join(filter(None, (parameter.name, default, rule, f"({parameter.permitted})")))


def _methods() -> list[Row]:
    rows = _picked(METHODS.values(), "name", "summary", "parameters", "source")
    return [row | {"parameters": [_described(p) for p in row["parameters"]]} for row in rows]


def _drafters() -> list[Row]:
    """Return the drafters, then the modules of pairs."""
    summary = "Draws tokens from a module on the states of the target of {}."
    modules = [(name, pair.name) for pair in pairs().values() for name in pair.drafters]
    return _picked(DRAFTERS.values(), "name", "summary", "source") + [
        {"name": name, "summary": summary.format(pair), "source": f"--pair {pair}"}
        for name, pair in modules
    ]


def _pairs() -> list[Row]:
    rows = _picked(pairs().values(), "name", "target", "draft", "description")
    for row in rows:
        for role in ("target", "draft"):  # of a file on the hub, the repository
            bundled = pairs()[row["name"]].bundled
            row[role] = "bundled" if bundled else str(row[role]).partition(":")[0]
    return rows


def _summary(function: Callable[..., Any]) -> Row:
    """Return the first line of a docstring."""
    return {"description": (inspect.getdoc(function) or "").partition("\n")[0]}


LISTS: dict[str, Callable[[], list[Row]]] = {
    "methods": _methods,
    "drafters": _drafters,
    "pairs": _pairs,
    "heads": listed_heads,
    "tasks": lambda: _picked(map(load_task, task_names()), *_OF_TASKS),
    "metrics": lambda: [
        {"name": metric.name, "unit": metric.unit, "needs": metric.needs}
        | _summary(metric.function)
        for metric in METRICS.values()
    ],
    "figures": lambda: [{"name": name} | _summary(load_figure(name)) for name in FIGURES],
    "columns": lambda: _picked(dictionary(), *_OF_COLUMNS),
}


def _table(rows: list[Row], title: str) -> Table:
    headings = [
        Column(name.replace("_", " "), align="right" if name == "max_new_tokens" else "left")
        for name in rows[0]
    ]
    lines = [
        ["\n".join(v) if isinstance(v, list | tuple) else str(v) for v in row.values()]
        for row in rows
    ]
    return Table(title, headings, lines)


def pages() -> dict[str, Path]:
    """Return the pages by name; those beside the package in a clone are in it in a wheel."""
    docs = Path(specbench.__file__).parent / "docs"
    root = docs if (docs / "results").is_dir() else docs.parents[1]
    paths = {path.stem: path for path in docs.glob("*.md")}
    paths |= {"tasks": definitions_folder() / "README.md", "results": root / "results/README.md"}
    return {name: path for name, path in sorted(paths.items()) if path.exists()}


def docs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The page; without it, all pages are listed.",
            autocompletion=completer(pages),
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a page of the documentation, or list the pages with their questions."""
    pages_by_name = pages()
    if name is None:
        rows = []
        for page, path in pages_by_name.items():
            with path.open(encoding="utf-8") as file:  # whose first line is "# Name: question?"
                rows.append([page, file.readline().partition(": ")[2].strip()])
        headings = [Column("page"), Column("question")]
        print_table(Table("Pages; specbench docs NAME prints one", headings, rows, stub=2))
        return
    if name not in pages_by_name:
        raise UsageError(unknown("page", name, pages_by_name))
    print_page(pages_by_name[name].read_text(encoding="utf-8"))


def print_page(text: str) -> None:
    """Print Markdown, rendered on a terminal."""
    console = Console()
    if not console.is_terminal:
        print(text, end="")
        return
    console.print(Markdown(text), width=min(console.width, WIDTH))
