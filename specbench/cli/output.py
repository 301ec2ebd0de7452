"""Where output goes: data to stdout, messages to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from specbench.errors import SpecbenchError

if TYPE_CHECKING:
    from specbench.table import Table

INTERRUPTED = 130  # exit code
PIPED_WIDTH = 140  # characters of a table that goes to a file or another program


class Interrupted(SpecbenchError):
    """The user stopped a run; the message says what was kept."""


def console() -> Console:
    """Return the console for data, wide enough that a piped table is not cut."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_table(*tables: Table, styles: Mapping[str, str] | None = None) -> None:
    """Print tables as wide as the terminal is, on a terminal with the best numbers in bold.

    Args:
        tables: What to print; a note that several share is printed once.
        styles: How rich is to show some words.
    """
    from specbench.table import to_text

    out = console()
    shown = Text(to_text(*tables, width=out.width))
    if not out.is_terminal:
        print(shown.plain, end="")
        return
    shown.highlight_words([table.title for table in tables if table.title], "italic")
    shown.highlight_regex(r"[\d.]+\*", "bold")
    for word, style in (styles or {}).items():
        shown.highlight_words([word], style)
    out.print(shown, end="", soft_wrap=True)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def show_warnings() -> None:
    """Print what specbench's packages log as notes."""
    log = logging.getLogger("specbench")
    if not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes(logging.WARNING))


def note(text: str) -> None:
    """Tell the user something worth knowing that is no failure."""
    print(f"note: {text}", file=sys.stderr)


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows for another program to read."""
    print(json.dumps(rows, indent=2, ensure_ascii=False))
