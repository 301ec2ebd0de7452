"""The live view of a training on a terminal, and its lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from specbench.training.recipe import HeadRecipe
from specbench.training.verifier import Progress

WINDOW = 10  # steps that "lately" is a mean of, and between two lines without a terminal
WIDTH = 40  # characters of a sparkline
BARS = "▁▂▃▄▅▆▇█"
SHOWN = {
    "reward": ("reward", ".3f"),
    "acceptance": ("acceptance per position", ".3f"),
    "weight": ("mean weight w", ".3f"),
    "loss": ("loss", ".3f"),
    "acceptance_weight": ("lambda", ".2f"),
    "kl": ("KL to the start, nats a text", ".2f"),
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
        recipe: How long.
        shown: False shows nothing.
        console: Where to draw; stderr by default. Without a terminal a line now and then.

    Yields:
        A function to call with every step's progress.
    """
    console = console or Console(stderr=True)
    if not shown:
        yield lambda progress: None
    elif console.is_terminal:
        view = View(title, recipe.steps)
        with Live(view.render(), console=console, auto_refresh=False) as live:
            yield lambda progress: live.update(view.after(progress), refresh=True)
    else:
        yield lambda progress: _line(title, recipe.steps, progress)


@dataclass
class View:
    """All steps so far, and how they look."""

    title: str
    steps: int
    rows: list[Progress] = field(default_factory=list)

    def after(self, progress: Progress) -> Panel:
        """Return the view once another step is done."""
        self.rows.append(progress)
        return self.render()

    def render(self) -> Panel:
        """Return the view."""
        if not self.rows:
            return Panel("the first roll-outs are under way", title=self.title, width=92)
        last, lately = self.rows[-1], self.rows[-WINDOW:]
        seconds = fmean(row.rollout_seconds + row.update_seconds for row in lately)
        bar = Table.grid(padding=(0, 1))
        left = seconds * (self.steps - last.step)
        bar.add_row(
            f"step {last.step} of {self.steps}",
            ProgressBar(total=self.steps, completed=last.step, width=40),
            f"{int(left // 60)}:{int(left % 60):02d} left",
        )
        table = Table(box=None, pad_edge=False)
        for header in ("", "last", f"mean of {len(lately)}"):
            table.add_column(header, justify="right" if header else "left")
        table.add_column("since the start" if len(self.rows) == last.step else "since resumed")
        for name, (label, form) in SHOWN.items():
            values = [getattr(row, name) for row in self.rows]
            line = sparkline(values) if name in DRAWN else ""
            table.add_row(label, f"{values[-1]:{form}}", f"{fmean(values[-WINDOW:]):{form}}", line)
        return Panel(Group(bar, "", table), title=self.title, width=92)


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
