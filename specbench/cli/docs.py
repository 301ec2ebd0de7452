"""``specbench docs``: the pages that stand beside the code, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

import specbench
from specbench.cli.generate import completer
from specbench.cli.output import print_table
from specbench.errors import UsageError
from specbench.runs.table import Column, Table
from specbench.tasks.task import definitions_folder
from specbench.errors import unknown

WIDTH = 100  # of text; longer lines are hard to read


def pages() -> dict[str, Path]:
    """Return the pages by name; some are only in a clone."""
    root = Path(specbench.__file__).parent
    elsewhere = {
        "tasks": definitions_folder() / "README.md",
        "results": root.parent / "results" / "README.md",
        "findings": root.parent / "results" / "findings.md",
        "tests": root.parent / "tests" / "README.md",
    }
    pages_by_name = {path.stem: path for path in (root / "docs").glob("*.md")}
    return {
        name: path for name, path in sorted((pages_by_name | elsewhere).items()) if path.exists()
    }


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
        rows = [[page, _question(path)] for page, path in pages_by_name.items()]
        columns = [Column("page"), Column("question")]
        print_table(Table("Pages; specbench docs NAME prints one", columns, rows, stub=2))
        return
    if name not in pages_by_name:
        raise UsageError(unknown("page", name, pages_by_name))
    text, console = pages_by_name[name].read_text(encoding="utf-8"), Console()
    if not console.is_terminal:
        print(text, end="")
        return
    console.print(Markdown(text), width=min(console.width, WIDTH))


def _question(page: Path) -> str:
    """Return the question in a page's first line, ``# Name: question?``."""
    with page.open(encoding="utf-8") as file:
        return file.readline().partition(": ")[2].strip()
