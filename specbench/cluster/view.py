"""The live view of several workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from specbench.analysis.labels import method_label
from specbench.experiment.progress import Record
from specbench.experiment.records import OK

WIDTH = 78  # characters; fits the usual terminal
MOST_ROWS = 16  # workers with a row of their own


@contextmanager
def crew_view(total: int, shown: bool, console: Console | None = None) -> Iterator[View]:
    """Show how the workers are while the context lasts.

    Args:
        total: Samples in all.
        shown: False shows nothing; nothing is shown either where stderr is no terminal.
        console: Where to draw; stderr by default.

    Yields:
        The view, to be told of records and workers.
    """
    console = console or Console(stderr=True)
    view = View(total)
    if not (shown and console.is_terminal):
        yield view
        return
    with Live(view, console=console, refresh_per_second=2, transient=True):
        yield view


@dataclass
class _Worker:
    state: str
    device: str = ""
    doing: str = ""
    done: int = 0


@dataclass
class View:
    """All workers; Rich asks for how they look whenever it draws.

    Attributes:
        total: Samples in all.
        clock: Gives seconds since some moment.
    """

    total: int
    clock: Callable[[], float] = time.monotonic
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _began: float | None = None
    _there: int = 0  # samples of earlier sessions
    _found: int = 0
    _failed: int = 0

    def watch(self, worker: int, state: str, device: str = "") -> None:
        """Take in the state of a worker."""
        known = self._workers.setdefault(worker, _Worker(state))
        known.state, known.doing = state, ""
        known.device = device or known.device

    def report(self, record: Record) -> None:
        """Take in a record; one that was there before names no device."""
        if "status" not in record:
            self._there += 1
            return
        self._began = self.clock() if self._began is None else self._began
        self._found += 1
        self._failed += record["status"] != OK
        for worker in self._workers.values():
            if worker.device == record.get("device"):
                worker.done += 1
                worker.doing = f"{record['task']}, {method_label(record)}"

    def __rich__(self) -> Panel:
        return Panel(Group(self._bar(), self._table()), width=WIDTH, title="workers")

    def _bar(self) -> Table:
        done = self._there + self._found
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        failed = f", {self._failed} failed" if self._failed else ""
        bar.add_row(
            f"{done} of {self.total}{failed}",
            ProgressBar(total=self.total, completed=done),
            self._left(),
        )
        return bar

    def _left(self) -> str:
        """Say how long the rest takes at the pace since the first sample came."""
        if self._began is None or self._found < 2:
            return "loading the models"
        pace = (self.clock() - self._began) / (self._found - 1)
        left = pace * (self.total - self._there - self._found)
        return f"{timedelta(seconds=round(left))} left"

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("worker", justify="right")
        table.add_column("device", no_wrap=True)
        table.add_column("samples", justify="right")
        table.add_column("state", no_wrap=True, ratio=1)
        shown = sorted(self._workers.items())[:MOST_ROWS]
        for number, worker in shown:
            state = worker.doing or worker.state
            table.add_row(str(number), worker.device, str(worker.done), state)
        others = [worker for number, worker in self._workers.items() if number >= MOST_ROWS]
        if others:
            states = Counter(worker.state for worker in others)
            said = ", ".join(f"{count} {state}" for state, count in states.items())
            done = sum(worker.done for worker in others)
            table.add_row("others", f"{len(others)}", str(done), said)
        return table
