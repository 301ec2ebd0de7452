"""Where output goes: data to stdout, messages to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from specbench.errors import SpecbenchError

INTERRUPTED = 130  # exit code
PIPED_WIDTH = 140  # characters of a table that goes to a file or another program


class Interrupted(SpecbenchError):
    """The user stopped a run; the message says what was kept."""


def console() -> Console:
    """Return the console for data, wide enough that a piped table is not cut."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def note(text: str) -> None:
    """Tell the user something worth knowing that is no failure."""
    print(f"note: {text}", file=sys.stderr)


def print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows for another program to read."""
    print(json.dumps(rows, indent=2, ensure_ascii=False))
