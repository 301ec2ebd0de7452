"""What commands show on stderr while they work, and what a plan costs before they do.

A forecast has the memory and the download of a plan.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import progress
from rich.console import Console
from rich.text import Text

from specbench.config import LLAMACPP
from specbench.errors import printable
from specbench.experiment.plan import Plan, Step, engine_name
from specbench.runs.labels import method_label, method_labels
from specbench.runs.model import OK

if TYPE_CHECKING:
    from specbench.experiment.workers import Worker

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


class _TimeLeft(progress.TimeRemainingColumn):
    """The remaining time of the whole run; blank for workers."""

    def render(self, task: progress.Task) -> Text:
        return Text() if task.fields["worker"] else super().render(task)


class _Counted(progress.MofNCompleteColumn):
    """How much is done of how much; blank for steps that are not counted."""

    def render(self, task: progress.Task) -> Text:
        return Text() if task.total is None else super().render(task)


class Display:
    """Shows finished samples, or others of this name, and workers; nothing without ``bars``."""

    def __init__(
        self, total: int, bars: progress.Progress | None = None, name: str = "samples"
    ) -> None:
        self._total, self._bars, self._name = total, bars or progress.Progress(disable=True), name
        self._sums: dict[tuple[str, str], dict[str, float]] = defaultdict(
            lambda: dict.fromkeys(_SUMMED, 0.0)
        )
        self._failed = 0
        self._workers: dict[int, progress.TaskID] = {}
        self._at: dict[str, progress.TaskID] = {}  # the worker on each device
        self._whole = self._add("", "", worker=False)

    def resumed(self, samples: int = 0) -> None:
        """Begin to count, with samples of earlier sessions, which say nothing of the pace."""
        done = int(self._bars.tasks[self._whole].completed) + samples
        self._bars.reset(self._whole, completed=done, total=self._total)
        self._bars.update(self._whole, first=done)

    def __call__(self, *records: Mapping[str, Any]) -> None:
        """Count finished samples."""
        for record in records:
            task, label = record["task"], method_label(record)
            sums = self._sums[task, label]
            for name in _SUMMED:
                sums[name] += record.get(name) or 0
            self._failed += record.get("status", OK) != OK
            figures = [*_figures(sums), f"{self._failed} failed" if self._failed else ""]
            text = ", ".join(filter(None, figures))
            self._bars.update(self._whole, advance=1, description=label, left=task, figures=text)
            if (worker := self._at.get(record.get("device", ""))) is not None:
                self._bars.update(worker, advance=1, figures=f"{task}, {label}")

    def doing(self, text: str, task: str = "") -> None:
        """Show what is done now, of which no sample is finished yet."""
        self._bars.update(self._whole, description=text, left=task)

    def worker(self, number: int, state: str, device: str = "") -> None:
        """Show the state of a worker, and its device once it is known."""
        if number not in self._workers:
            self._workers[number] = self._add(f"worker {number}", device, worker=True)
        bar = self._workers[number]
        self._bars.update(bar, figures=state)
        if device:
            self._at[device] = bar
            self._bars.update(bar, description=device)

    def _add(self, left: str, description: str, *, worker: bool) -> progress.TaskID:
        fields: dict[str, Any] = {"left": left, "figures": "", "worker": worker, "name": self._name}
        return self._bars.add_task(description, total=self._total, **fields)


class Steps:
    """Shows the step that is called, and counts the calls once their number is known."""

    def __init__(self, bars: progress.Progress) -> None:
        self._bars = bars
        self._bar = bars.add_task("", total=None)
        self._next = 0

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
    """Show the progress of samples, or others of this name, within the context.

    Yields:
        The display; call it with the record of every finished sample.
    """
    columns = (
        progress.TextColumn("{task.fields[left]}"),
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[figures]}"),
        _TimeLeft(),
    )
    with _bars(shown, console, *columns, transient=True) as bars:
        yield Display(total, bars, name)


@contextmanager
def training_bar(
    title: str, steps: int, shown: bool = True, every: int = 10, console: Console | None = None
) -> Iterator[Callable[[int, str], None]]:
    """Show the progress of a training; yields a function of the step and its figures.

    Without a terminal it prints the first line, the last, every ``every``-th, and one that comes
    ``LINE_AFTER`` seconds or more after the last.
    """
    printed_at = 0.0
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with _bars(shown, console, *columns, speed_estimate_period=PACE) as bars:
        bar = bars.add_task(title, total=steps, name="steps")

        def report(step: int, figures: str) -> None:
            nonlocal printed_at
            bars.update(bar, completed=step, description=f"{title}\n{figures}")
            is_due = step % every == 0 or step in (1, steps)
            if shown and bars.disable and (is_due or monotonic() - printed_at >= LINE_AFTER):
                printed_at = monotonic()
                print(f"{title}: step {step}, {figures}", file=sys.stderr, flush=True)

        yield report


@contextmanager
def step_status(shown: bool, console: Console | None = None) -> Iterator[Steps]:
    """Show the current step of a command within the context, and how much is done."""
    with _bars(
        shown, console, progress.TextColumn("{task.description}"), _Counted(), transient=True
    ) as bars:
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
    title, *further = whole.description.splitlines() or [""]
    now = ", ".join(filter(None, [whole.fields.get("left"), title, *further]))
    if whole.total is None:
        return now and f"{now}, {_clock(seconds)} so far"
    parts = [f"{whole.completed:.0f} of {whole.total:.0f} {whole.fields['name']}"]
    if whole.completed >= whole.total:
        parts.append("finishing")  # a last measurement may take minutes
    elif done > 0 and seconds > 0:
        rate = 60 * done / seconds
        left = (whole.total - whole.completed) * seconds / done
        parts += [f"{rate:,.{0 if rate >= 100 else 1}f} a minute", f"{_clock(left)} left"]
    else:
        parts.append(f"{_clock(seconds)} so far")
    return ", ".join(parts) + (f": {now}" if now else "")


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _figures(sums: Mapping[str, float]) -> Iterator[str]:
    """Yield acceptance and speed of a cell so far."""
    if sums["proposed"]:
        yield f"acceptance {100 * sums['accepted'] / sums['proposed']:.0f} %"
    if seconds := sums["prefill_seconds"] + sums["decode_seconds"]:
        yield f"{sums['output_tokens'] / seconds:.0f} tokens/s"


class Forecast(NamedTuple):
    """The estimated cost of a plan."""

    steps: list[Step]  # one of each cell on each task
    engine: str
    memory: float  # estimated bytes of both models, their caches and working memory; 0 if unknown
    free: int | None  # free bytes before loading; None if unknown
    download: int  # bytes of weights that are not on this machine


def forecast(plan: Plan, worker: Worker) -> Forecast:
    """Check a plan without weights and estimate its memory.

    GGUF files that are not on this machine are neither downloaded nor checked.

    Raises:
        SpecbenchError: The pair does not fit or cannot be loaded.
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
    steps: dict[tuple[int, int], Step] = {}  # by task and cell
    for step, *_ in plan.batches():
        task, *_, cell = step.place
        steps.setdefault((task, cell), step)
    of_cells = [step for _, step in sorted(steps.items())]
    return Forecast(of_cells, engine_name(engine, plan.arms), memory, free, download)


def forecast_rows(plan: Plan, expected: Forecast) -> list[dict[str, Any]]:
    """Return a row for each cell of each task."""
    rows: list[dict[str, Any]] = []
    for task in plan.tasks:
        steps = [step for step in expected.steps if step.plan is task]
        labels = method_labels([vars(plan.identify(step, expected.engine)) for step in steps])
        samples = task.samples * plan.settings.repeats
        rows += [
            {
                "task": task.task.name,
                "method": f"{label} again" if step.cell.timing else label,
                "draft_length": step.cell.draft_length,
                "samples": samples,
            }
            for step, label in zip(steps, labels, strict=True)
        ]
    return rows
