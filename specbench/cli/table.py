"""``specbench table``: the paper's main table from one's own runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.options.groups import grouped
from specbench.cli.options.rows import Rows
from specbench.cli.output import console, note
from specbench.cli.runs import chosen_runs
from specbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

TEXT, MARKDOWN, LATEX, CSV = FORMATS = ("text", "markdown", "latex", "csv")
PAPER = "paper"


@grouped
def table(
    rows: Rows,
    runs: o.Runs = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}. A csv has a row per number, with its interval.",
            autocompletion=completer(lambda: FORMATS),
        ),
    ] = TEXT,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Show the 95 % interval of every number.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar=PAPER,
            help="Put the numbers that the paper published beside one's own, with the difference, "
            "where pair, task, method, temperature and draft length are the same.",
            show_default=False,
            autocompletion=completer(lambda: [PAPER]),
        ),
    ] = None,
) -> None:
    """Print the paper's main table from finished runs: methods down, tasks across.

    Acceptance, quality and speed-up, a table for each pair, temperature and draft length. Every
    static weight and every head has a row of its own.
    """
    for option, typed, known in (("--format", format, FORMATS), ("--against", against, [PAPER])):
        if typed is not None and typed not in known:
            raise UsageError(f"unknown {option} {typed!r}: give {' or '.join(known)}")

    from specbench.analysis.best import NEEDED, SPEEDUP
    from specbench.analysis.frames import read_samples, read_summary
    from specbench.analysis.published import beside_published, remarks
    from specbench.analysis.table import main_table
    from specbench.cli.tables import NO_BASELINE
    from specbench.experiment.tables import SUMMARY

    folders = chosen_runs(runs, SUMMARY)
    for folder in folders:
        if against and _has_random_weights(folder):
            note(f"{folder} has random weights (--load-format dummy): not what the paper measured")
    # Samples of methods that are not shown may still be what a speed-up is over.
    summary = rows.selection().of(read_summary(*folders))
    shown = main_table(summary, read_samples(*folders, only=NEEDED))
    if against:
        shown = beside_published(shown)
        # The other formats say it below the table.
        for remark in remarks(shown) if format == CSV else ():
            note(remark)
    if not ((shown["figure"] == SPEEDUP) & shown["value"].notna()).any():
        note(NO_BASELINE)
    _PRINTERS[format](shown, intervals)


def _print_text(table: pd.DataFrame, intervals: bool) -> None:
    """Print the table as wide as the terminal is, there with the best in bold."""
    from rich.text import Text

    from specbench.analysis.typeset import text

    out = console()
    shown = Text(text(table, out.width, intervals))
    shown.highlight_regex(r"[\d.]+\*", "bold")
    out.print(shown, end="", soft_wrap=True)


def _print_markdown(table: pd.DataFrame, intervals: bool) -> None:
    from specbench.analysis.typeset import markdown

    print(markdown(table, intervals), end="")


def _print_latex(table: pd.DataFrame, intervals: bool) -> None:
    from specbench.analysis.typeset import latex

    print(latex(table, intervals), end="")


def _print_csv(table: pd.DataFrame, intervals: bool) -> None:
    """Print all there is; intervals have columns of their own anyway."""
    print(table.to_csv(index=False), end="")


_PRINTERS: dict[str, Callable[[pd.DataFrame, bool], None]] = {
    TEXT: _print_text,
    MARKDOWN: _print_markdown,
    LATEX: _print_latex,
    CSV: _print_csv,
}


def _has_random_weights(folder: Path) -> bool:
    from specbench.engine.settings import DUMMY
    from specbench.experiment.folders import CONFIG

    with suppress(OSError, ValueError, KeyError, TypeError):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return bool(config["loading"]["load_format"] == DUMMY)
    return False
