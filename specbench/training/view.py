"""The live view of a training on a terminal, and its lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specbench.training.recipe import HeadRecipe
from specbench.training.verifier import Progress

WINDOW = 10  # steps that "lately" is a mean of, and between two lines without a terminal
WIDTH = 24  # characters of a sparkline
BARS = "▁▂▃▄▅▆▇█"
PER_POSITION = "acceptance is per position: expected_acceptance of a run"
PANEL = 78  # characters; fits the usual terminal
SHOWN = {
    "reward": ("reward", ".3f"),
    "acceptance": ("acceptance", ".3f"),
    "weight": ("mean weight w", ".3f"),
    "loss": ("loss", ".3f"),
    "acceptance_weight": ("lambda", ".2f"),
    "kl": ("KL, nats a text", ".2f"),
    "rollout_seconds": ("roll-out, s", ".2f"),
    "update_seconds": ("update, s", ".2f"),
}
DRAWN = ("reward", "acceptance", "weight")  # with a sparkline


@contextmanager
def live_view(
    title: str, recipe: HeadRecipe, shown: bool, console: Console | None = None
) -> Iterator[Callable[[Progress], None]]:
    """Show how a training goes while the context lasts.

    Args:
        title: What is trained.
        recipe: How.
        shown: False shows nothing.
        console: Where to draw; stderr by default. Without a terminal a line now and then.

    Yields:
        A function to call with every step's progress.
    """
    console = console or Console(stderr=True)
    if not shown:
        yield lambda progress: None
    elif console.is_terminal:
        view = View(title, recipe)
        # Drawn anew twice a second: a step of large models takes minutes.
        with Live(view, console=console, refresh_per_second=2):
            yield view.add
    else:
        yield lambda progress: _line(title, recipe.steps, progress)


@dataclass
class View:
    """All steps so far; Rich asks for how they look whenever it draws.

    Attributes:
        title: What is trained.
        recipe: How.
        clock: Gives seconds since some moment.
        rows: The steps.
        latest: When the last of them ended.
    """

    title: str
    recipe: HeadRecipe
    clock: Callable[[], float] = time.monotonic
    rows: list[Progress] = field(default_factory=list)
    latest: float = field(init=False)

    def __post_init__(self) -> None:
        self.latest = self.clock()

    def add(self, progress: Progress) -> None:
        """Take in a step."""
        self.rows.append(progress)
        self.latest = self.clock()

    def __rich__(self) -> Panel:
        parts = [self._bar(), self._figures()] if self.rows else [self._bar()]
        return Panel(Group(*parts), title=Text(self.title), subtitle=PER_POSITION, width=PANEL)

    def _bar(self) -> Table:
        done, total = len(self.rows), self.recipe.steps
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = remaining(self.rows, total, self.clock() - self.latest)
        bar.add_row(f"step {done} of {total}", ProgressBar(total=total, completed=done), left)
        return bar

    def _figures(self) -> Table:
        """The latest and the recent mean of every figure, and the course of some."""
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for header in ("last", f"mean of {len(self.rows[-WINDOW:])}"):
            table.add_column(header, justify="right")
        table.add_column("since the start", no_wrap=True)
        for name, (label, form) in SHOWN.items():
            values = [getattr(row, name) for row in self.rows]
            if name == "acceptance" and self.recipe.target_acceptance is not None:
                label += f" (wish {self.recipe.target_acceptance:g})"
            line = sparkline(values) if name in DRAWN else ""
            table.add_row(label, f"{values[-1]:{form}}", f"{fmean(values[-WINDOW:]):{form}}", line)
        return table


def remaining(rows: Sequence[Progress], total: int, waited: float) -> str:
    """Say how long the rest will take at the pace of the latest steps.

    Args:
        rows: Steps done.
        total: Steps in all.
        waited: Seconds since the last step.
    """
    if not rows:
        return f"first roll-outs, {waited:.0f} s"
    if len(rows) == total:
        return "steps done, scores follow"
    pace = fmean(row.rollout_seconds + row.update_seconds for row in rows[-WINDOW:])
    left = pace * (total - len(rows)) - min(waited, pace)
    return f"{timedelta(seconds=round(left))} left"


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw values from their least to their greatest, at most ``width`` characters wide.

    More values than characters are averaged over equal stretches.
    """
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [fmean(values[a:b]) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[int((m - low) / span * 7.999) if span else 0] for m in means)


def _line(title: str, steps: int, progress: Progress) -> None:
    if progress.step % WINDOW == 0 or progress.step in (1, steps):
        print(f"{title}: {progress}", file=sys.stderr, flush=True)
