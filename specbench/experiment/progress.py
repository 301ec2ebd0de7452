"""What commands show on stderr while they work, and what a plan costs before they do."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple

from rich import progress
from rich.console import Console, RenderableType

from specbench.config import LLAMACPP
from specbench.errors import printable
from specbench.experiment.plan import Plan, engine_name
from specbench.experiment.workers import Worker
from specbench.runs.labels import method_label, method_labels
from specbench.runs.model import OK

FIRST, EVERY = 30.0, 60.0  # seconds until the first line, and between two
LINE_AFTER = 60.0  # seconds after which a step has a line of its own
PACE = 1800.0  # window in seconds for the remaining time of a training; a step may take minutes
_SUMMED = ("accepted", "proposed", "output_tokens", "prefill_seconds", "decode_seconds")


class Lines:
    """Knows when the next line is due: a command may have many steps, but has one line a minute."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a command, which has no line if it ends soon."""
        self._due = monotonic() + FIRST

    def print_due(self, describe: Callable[[], str]) -> None:
        """Print a line if it is due and there is progress to tell."""
        if monotonic() >= self._due and (text := describe()):
            self._due = monotonic() + EVERY
            with suppress(OSError, ValueError):  # stderr was closed
                print("progress:", printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def printed(self, describe: Callable[[], str]) -> Iterator[None]:
        """Print lines within the context, also while a batch takes minutes."""
        ended = Event()

        def proceed() -> None:
            while not ended.wait(max(self._due - monotonic(), 1.0)):
                self.print_due(describe)

        thread = Thread(target=proceed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


LINES = Lines()


class _If(progress.ProgressColumn):
    """A column that is blank for some rows."""

    def __init__(
        self, applies: Callable[[progress.Task], bool], column: progress.ProgressColumn
    ) -> None:
        super().__init__()
        self.applies, self.column, self.max_refresh = applies, column, column.max_refresh

    def render(self, task: progress.Task) -> RenderableType:
        return self.column.render(task) if self.applies(task) else ""


class Display:
    """Shows finished samples, or others of this name, and workers; nothing without ``bars``."""

    def __init__(
        self, total: int, bars: progress.Progress | None = None, name: str = "samples"
    ) -> None:
        self._bars = bars or progress.Progress(disable=True)
        self._fields: dict[str, Any] = {"total": total, "figures": "", "name": name}
        self._sums: dict[Any, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_SUMMED, 0.0))
        self._failed = 0
        self._workers: dict[int, progress.TaskID] = {}
        self._at: dict[str, progress.TaskID] = {}  # the worker on each device
        self._whole = self._bars.add_task("", left="", worker=False, **self._fields)

    def resumed(self, samples: int = 0) -> None:
        """Begin to count, with samples of earlier sessions, which say nothing of the pace."""
        done = int(self._bars.tasks[self._whole].completed) + samples
        self._bars.reset(self._whole, completed=done, total=self._fields["total"])
        self._bars.update(self._whole, first=done)

    def __call__(self, *records: Mapping[str, Any]) -> None:
        """Count finished samples; show acceptance and speed of their cell so far."""
        for record in records:
            task, label = record["task"], method_label(record)
            sums, figures = self._sums[task, label], []
            for name in _SUMMED:
                sums[name] += record.get(name) or 0
            self._failed += record.get("status", OK) != OK
            if sums["proposed"]:
                figures.append(f"acceptance {100 * sums['accepted'] / sums['proposed']:.0f} %")
            if seconds := sums["prefill_seconds"] + sums["decode_seconds"]:
                figures.append(f"{sums['output_tokens'] / seconds:.0f} tokens/s")
            text = ", ".join(figures + [f"{self._failed} failed"] * bool(self._failed))
            self._bars.update(self._whole, advance=1, description=label, left=task, figures=text)
            if (worker := self._at.get(record.get("device", ""))) is not None:
                self._bars.update(worker, advance=1, figures=f"{task}, {label}")

    def doing(self, text: str, task: str = "") -> None:
        """Show what is done now, of which no sample is finished yet."""
        self._bars.update(self._whole, description=text, left=task)

    def worker(self, number: int, state: str, device: str = "") -> None:
        """Show the state of a worker, and its device once it is known."""
        if number not in self._workers:
            fields = {"left": f"worker {number}", "worker": True, **self._fields}
            self._workers[number] = self._bars.add_task("", **fields)
        bar = self._workers[number]
        self._bars.update(bar, figures=state, description=device or None)
        self._at |= {device: bar} if device else {}


class Steps:
    """Shows the step that is called, and counts the calls once their number is known."""

    def __init__(self, bars: progress.Progress) -> None:
        self._bars, self._bar, self._next = bars, bars.add_task("", total=None), 0

    def expect(self, total: int, name: str = "texts") -> None:
        """Count the next calls, of so many things of this name."""
        self._next = 0
        self._bars.reset(self._bar, total=total)
        self._bars.update(self._bar, name=name)

    def __call__(self, text: str) -> None:
        """Show a step that begins."""
        self._bars.update(self._bar, completed=self._next, description=text)
        self._next += self._bars.tasks[self._bar].total is not None


@contextmanager
def progress_bar(
    total: int, shown: bool, console: Console | None = None, name: str = "samples"
) -> Iterator[Display]:
    """Show samples, or others of this name; call the display with each record that is finished."""
    columns = (
        progress.TextColumn("{task.fields[left]}"),
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[figures]}"),
        _If(lambda task: not task.fields["worker"], progress.TimeRemainingColumn()),
    )
    with _bars(shown, console, *columns, transient=True) as bars:
        yield Display(total, bars, name)


@contextmanager
def training_bar(
    title: str,
    steps: int,
    shown: bool = True,
    every: int = 10,
    console: Console | None = None,
    done: int = 0,
) -> Iterator[Callable[[int, str], None]]:
    """Show the progress of a training; yields a function of the step and its figures.

    Without a terminal it prints the first line, the last, every ``every``-th, and one that comes
    ``LINE_AFTER`` seconds or more after the last. What was ``done`` before sets no pace.
    """
    printed_at = 0.0
    counted = (progress.BarColumn(bar_width=None), progress.MofNCompleteColumn())
    columns = (progress.TextColumn("{task.description}"), *counted, progress.TimeRemainingColumn())
    with _bars(shown, console, *columns, speed_estimate_period=PACE) as bars:
        bar = bars.add_task(title, total=steps, completed=done, name="steps", first=done)

        def report(step: int, figures: str) -> None:
            nonlocal printed_at
            bars.update(bar, completed=max(step, done), description=f"{title}\n{figures}")
            is_due = step % every == 0 or step in (1, steps)
            if shown and bars.disable and (is_due or monotonic() - printed_at >= LINE_AFTER):
                printed_at = monotonic()
                print(f"{title}: step {step}, {figures}", file=sys.stderr, flush=True)

        yield report


@contextmanager
def step_status(shown: bool, console: Console | None = None) -> Iterator[Steps]:
    """Show the current step of a command within the context, and how much is done."""
    counted = _If(lambda task: task.total is not None, progress.MofNCompleteColumn())
    columns = (progress.TextColumn("{task.description}"), counted)
    with _bars(shown, console, *columns, transient=True) as bars:
        yield Steps(bars)


@contextmanager
def _bars(
    shown: bool, console: Console | None, *columns: progress.ProgressColumn, **options: Any
) -> Iterator[progress.Progress]:
    """Show bars on stderr, which always move; where it is no terminal, print lines."""
    console = console or Console(stderr=True)
    options["disable"] = not (shown and console.is_terminal)
    bars = progress.Progress(progress.SpinnerColumn(), *columns, console=console, **options)
    as_lines = shown and not console.is_terminal
    with bars, LINES.printed(lambda: _line(bars)) if as_lines else nullcontext():
        yield bars


def _line(bars: progress.Progress) -> str:
    """Return how much is done, the rate, the time left, and what is done now."""
    if not bars.tasks:
        return ""
    whole = bars.tasks[0]
    # What was done before it began to count says nothing of the pace.
    seconds, done = whole.elapsed or 0.0, whole.completed - whole.fields.get("first", 0)
    now = ", ".join(filter(None, [whole.fields.get("left"), *whole.description.splitlines()]))
    so_far = f"{timedelta(seconds=round(seconds))} so far"
    if whole.total is None:
        return now and f"{now}, {so_far}"
    parts = [f"{whole.completed:.0f} of {whole.total:.0f} {whole.fields['name']}", so_far]
    if whole.completed >= whole.total:
        parts[1] = "finishing"  # a last measurement may take minutes
    elif done > 0 and seconds > 0:
        rate, left = 60 * done / seconds, (whole.total - whole.completed) * seconds / done
        parts[1] = f"{rate:,.{0 if rate >= 100 else 1}f} a minute"
        parts.append(f"{timedelta(seconds=round(left))} left")
    return ", ".join(parts) + (f": {now}" if now else "")


class Forecast(NamedTuple):
    """The estimated cost of a plan."""

    rows: list[dict[str, Any]]  # one of each cell of each task
    engine: str
    memory: float  # estimated bytes of both models, their caches and working memory; 0 if unknown
    free: int | None  # free bytes before loading; None if unknown
    download: int  # bytes of weights that are not on this machine


def forecast(plan: Plan, worker: Worker) -> Forecast:
    """Check a plan without weights and estimate its memory.

    GGUF files that are not on this machine are neither downloaded nor checked.
    """
    from specbench.engine.device import choose_device
    from specbench.engine.hardware import available_memory
    from specbench.engine.hub import download_bytes
    from specbench.engine.memory import decoding_needs
    from specbench.experiment.loader import largest

    of_pair, loading, engine = plan.part(servers=False), plan.loading, ""
    memory, free, download = 0.0, None, 0
    if len(of_pair):
        download, engine = download_bytes(plan.pair, loading), LLAMACPP
        if not (plan.pair.gguf and download):
            engine = worker.prepare(of_pair)
            memory = sum(map(sum, decoding_needs(plan.pair, loading, *largest(of_pair)).values()))
        spread = loading.device_map is not None
        free = available_memory(choose_device(loading.device), spread=spread)
    engine, rows = engine_name(engine, plan.arms), list[dict[str, Any]]()
    for number, task in enumerate(plan.tasks):
        steps = [plan.step((number, 0, 0, cell)) for cell in range(len(task.cells))]
        labels = method_labels([vars(plan.identify(step, engine)) for step in steps])
        samples = {"samples": task.samples * plan.settings.repeats}
        for cell, label in zip(task.cells, labels, strict=True):
            of_cell: dict[str, Any] = {"method": f"{label} again" if cell.timing else label}
            of_cell |= {"draft_length": cell.draft_length}
            rows.append({"task": task.task.name, **of_cell, **samples})
    return Forecast(rows, engine, memory, free, download)
