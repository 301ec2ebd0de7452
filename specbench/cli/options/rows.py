"""Which part of finished runs a command reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.choices import ALL, parse_numbers, split

if TYPE_CHECKING:
    from specbench.analysis.selection import Selection

_option: Any = partial(
    typer.Option, metavar="NAME[,NAME...]", show_default="all", rich_help_panel="Part of the runs"
)

Task = Annotated[list[str] | None, _option("--task", "-t", help="Only these tasks of the runs.")]

Method = Annotated[
    list[str] | None, _option("--method", "-m", help="Only these methods of the runs.")
]

DraftLength = Annotated[
    str | None,
    _option(
        "--draft-length",
        metavar="N[,N...]",
        help="Only these draft lengths of the runs; what drafts nothing goes with each.",
    ),
]


@dataclass(frozen=True)
class MethodRows:
    """Which methods and draft lengths of finished runs a command reads."""

    method: Method = None
    draft_length: DraftLength = None

    def of_tasks(self, typed: list[str] | None) -> Selection:
        """Return these, of some tasks only.

        Args:
            typed: Values of --task.
        """
        from specbench.analysis.selection import Selection

        length = self.draft_length
        return Selection(
            _names("--task", typed),
            _names("--method", self.method),
            None if length is None else parse_numbers("--draft-length", length, int),
        )


@dataclass(frozen=True)
class Rows(MethodRows):
    """Which tasks, methods and draft lengths of finished runs a command reads."""

    task: Task = None

    def selection(self) -> Selection:
        """Return what is to be read."""
        return self.of_tasks(self.task)


def _names(option: str, typed: list[str] | None) -> list[str] | None:
    names = split(option, typed or [])
    return None if typed is None or ALL in names else names
