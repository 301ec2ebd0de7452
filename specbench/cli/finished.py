"""Options of commands that read finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.options import ALL, Models
from specbench.cli.output import note
from specbench.config import Count, Options, option
from specbench.engine.pairs import ROLES, TRUSTED, pairs
from specbench.runs.run import Trust, newest_run, require_cells

if TYPE_CHECKING:
    from specbench.runs.frames import Selection

NEWEST = "the newest under results/"
SPLITS = ("category", "turn")  # columns of samples that can split a task

Runs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN", help="Run folders, or folders that contain runs.", show_default=NEWEST
    ),
]
FinishedRun = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def given_or_newest(runs: Sequence[Path] | None) -> list[Path]:
    """Return the runs that the user gave, or the newest one, which a note names."""
    if runs:
        return [*runs]

    folder = newest_run()
    note(f"no run was given, so this is the newest, {folder}")
    return [folder]


class RecordedModels(Models):
    """Which models may be loaded for a finished run, which could name any."""

    pair: str | None = option(
        None,
        "Pair of the run, if its models are not bundled; or name them with --target and --draft.",
        metavar="NAME",
        shown="the run's, if it is bundled",
        complete=pairs,
    )

    def trust(self) -> Trust:
        """Return what the user permits of a run."""
        has_models = any(model is not None for model in (self.pair, self.target, self.draft))
        return Trust(self.spec(alone=True) if has_models else None, self.loading())


Recorded = Annotated[RecordedModels, ("pair", *ROLES, *TRUSTED)]


INCLUDED = "; autoregressive is always included"


def _only(noun: str, *flags: str, metavar: str = "NAME[,NAME...]", further: str = "") -> Any:
    help = f"Only these {noun} of the runs{further}."
    return option(None, help, flags=flags, metavar=metavar, shown=ALL)


class Rows(Options):
    """Which tasks, methods and draft lengths of finished runs a command reads."""

    panel = "Filters"

    task: list[str] | None = _only("tasks", "--task", "-t")
    method: list[str] | None = _only("methods", "--method", "-m")
    draft_length: list[Count] | None = _only("draft lengths", metavar="N[,N...]", further=INCLUDED)
    drafter: list[str] | None = _only("drafters", further=INCLUDED)
    by: list[str] | None = option(
        None,
        "Split every task by a column of its samples; repeat or separate by commas.",
        metavar="COLUMN",
        choices=SPLITS,
    )

    def require_in(self, folders: Iterable[Path]) -> None:
        """Refuse names and lengths that no run has, before any table is read."""
        split = {*SPLITS} & {*(self.by or ())}  # the names of tasks then depend on the tables
        chosen = {"task": None if split else self.task, "method": self.method}
        names = {name: values for name, values in chosen.items() if values and ALL not in values}
        require_cells(folders, {**names, "draft_length": self.draft_length or ()})

    def selection(self) -> Selection:
        """Return what to read."""
        from specbench.runs.frames import Selection

        tasks = None if ALL in (self.task or ()) else self.task
        methods = None if ALL in (self.method or ()) else self.method
        by = tuple(name for name in self.by or () if name in SPLITS)
        return Selection(tasks, methods, self.draft_length, self.drafter, by)
