"""Execute a plan with several workers; the workers decode, and only this process writes files.

The unit of work is a row: all cells of a task on the same examples. One device decodes a whole row
without interruption, so methods are compared on the same device at the same time.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

from specbench.cluster.pool import MOST_TRIES, Pool, WorkerLostError
from specbench.errors import RunError
from specbench.experiment.environment import command_line
from specbench.experiment.plan import Plan, SampleIndex, Step, samples_of
from specbench.experiment.progress import Display
from specbench.experiment.store import Store
from specbench.runs.records import ERROR, write_examples

log = logging.getLogger(__name__)

# Work for one worker: batches of one cell each.
Row = deque[list[SampleIndex]]


def execute(
    plan: Plan,
    store: Store,
    pool: Pool,
    display: Display | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Decode all pending steps of a plan; the counterpart of ``runner.execute`` for workers.

    Raises:
        SpecbenchError: The pair or a head cannot be loaded, workers have different models or die
            before they are ready, or the disk cannot be written.
        KeyboardInterrupt: The run was stopped.
    """
    write_examples(store.folder, {t.task.name: t.examples for t in plan.tasks})
    execution = _Execution(plan, store, pool, display or Display(len(plan)))
    try:
        for number in range(min(pool.size, sum(1 for _ in _by_row(plan.batches())))):
            execution.start(number)
        while execution.unfinished:
            execution.proceed()
            if stop():
                raise KeyboardInterrupt
    except BaseException:
        execution.dismiss()
        raise
    execution.close()


class _Execution:
    """Assigns pending rows to workers, and reassigns the row of a worker that dies."""

    def __init__(self, plan: Plan, store: Store, pool: Pool, display: Display) -> None:
        self._plan, self._store, self._pool, self._display = plan, store, pool, display
        self._shared = pool.share(plan)
        self._asked: dict[Any, tuple[int, Row | None]] = {}  # None while a worker starts
        self._idle: set[int] = set()
        self._waiting: dict[int, deque[Row]] | None = None  # rows by task index
        self._task_of: dict[int, int] = {}  # the task that each worker is warmed up for
        self._deaths: Counter[SampleIndex] = Counter()
        self._first: Mapping[str, Any] = {}
        self._devices: dict[int, str] = {}
        self._warned: set[str] = set()

    @property
    def unfinished(self) -> bool:
        """Whether any sample is pending or being decoded."""
        busy = any(row for _, row in self._asked.values())
        return busy or self._waiting is None or any(self._waiting.values())

    def start(self, number: int) -> None:
        """Make a worker load the pair; Ray retries if the worker dies."""
        self._asked[self._pool.ask(number, "start", self._shared)] = (number, None)
        self._display.worker(number, "loading")

    def proceed(self) -> None:
        """Wait briefly for results, and give work to idle workers."""
        for reference in self._pool.wait(self._asked):
            number, row = self._asked.pop(reference)
            try:
                answer = self._pool.answer(reference)
            except WorkerLostError as error:
                self._lost(number, row, str(error))
                continue
            if row is None:
                self._ready(number, answer)
            else:
                results, warnings = answer
                self._warn(warnings)
                for index, result in results:
                    self._display(*self._store.record(self._plan.step(index), result))
                row.popleft()
                self._give(number, row)
        for number in sorted(self._idle):
            if (task := self._choose(number)) is not None and self._waiting:
                self._idle.remove(number)
                self._task_of[number] = task
                self._give(number, self._waiting[task].popleft())

    def dismiss(self) -> None:
        """Stop the busy workers."""
        for number, _ in self._asked.values():
            self._pool.dismiss(number)

    def close(self) -> None:
        """Sync the last samples, and collect the workers' facts that are known only at the end."""
        self._display(*self._store.sync())
        requests = {number: self._pool.ask(number, "end", again=False) for number in self._idle}
        facts: dict[int, Mapping[str, Any]] = {}
        for number, reference in requests.items():
            with suppress(WorkerLostError):
                facts[number] = self._pool.answer(reference)
            self._display.worker(number, "done")
        self._write(
            warm_ups=[{"worker": n, **w} for n, seen in facts.items() for w in seen["warm_ups"]],
            gpus_at_the_end=[gpu for seen in facts.values() for gpu in seen["gpus_at_the_end"]],
            engine=", ".join(sorted({seen["engine"] for seen in facts.values()})),
        )

    def _ready(self, number: int, facts: Mapping[str, Any]) -> None:
        """Register a worker; refuse one with other models or another engine than the first."""
        self._first = self._first or facts
        for name in ("models", "engine"):
            if facts[name] != self._first[name]:
                raise RunError(
                    f"worker {number} ({facts['device']}) differs in its {name} from the first: "
                    f"{_differences(facts[name], self._first[name])}; use the same models and "
                    "versions on all machines"
                )
        if self._waiting is None:
            self._waiting = self._rows()
        self._devices[number] = facts["device"]
        self._display.worker(number, "decoding", facts["device"])
        self._warn(facts["warnings"])
        self._write()
        self._idle.add(number)

    def _rows(self) -> dict[int, deque[Row]]:
        """Return the pending rows of the plan by task index."""
        self._store.expect(self._plan, self._first["models"], self._first["engine"])
        rows: dict[int, deque[Row]] = {}
        for batches in _by_row(self._plan.batches()):
            pending = [self._store.pending(batch) for batch in batches]
            self._display.resumed(sum(map(samples_of, batches)) - sum(map(samples_of, pending)))
            if left := deque([step.place for step in steps] for steps in pending if steps):
                rows.setdefault(batches[0][0].place[0], deque()).append(left)
        return rows

    def _choose(self, worker: int) -> int | None:
        """Choose a task: the one the worker is warm for, else the one with most rows per worker."""
        rows = {task: len(rows) for task, rows in (self._waiting or {}).items() if rows}
        if self._task_of.get(worker) in rows:
            return self._task_of[worker]
        taken = Counter(task for other, task in self._task_of.items() if other != worker)
        return max(rows, key=lambda task: rows[task] / (1 + taken[task]), default=None)

    def _give(self, number: int, row: Row) -> None:
        """Make a worker decode the next batch of a row; without a batch it becomes idle."""
        if row:
            self._asked[self._pool.ask(number, "measure", row[0], again=False)] = (number, row)
        else:
            self._idle.add(number)

    def _lost(self, number: int, row: Row | None, reason: str) -> None:
        """Reassign the work of a worker that died, and restart the worker.

        Samples during which ``MOST_TRIES`` workers died are recorded as failed. The rest of the row
        is queued behind all other rows, so that a temporary outage does not hit the same samples
        again.
        """
        self._display.worker(number, "lost, restarting")
        if row is None:
            if not self._asked and not self._idle:
                raise RunError(
                    f"a worker died {MOST_TRIES} times before it was ready; last reason: {reason}"
                )
            self._display.worker(number, "lost")
            return
        self._warn([f"worker {number} is lost, other workers take over: {reason}"])
        suspects = row.popleft()
        self._deaths.update(suspects)
        if retried := [index for index in suspects if self._deaths[index] < MOST_TRIES]:
            row.appendleft(retried)
        for index in sorted({*suspects} - {*retried}):
            error = f"gave up after {MOST_TRIES} workers died while decoding it: {reason}"
            for step in self._plan.step(index).turns:
                identity = self._plan.identify(step, self._first["engine"])
                failed = {**identity, "status": ERROR, "error": error}
                self._display(*self._store.record(step, failed))
        if row and self._waiting is not None:
            self._waiting.setdefault(row[0][0][0], deque()).append(row)
        self._task_of.pop(number, None)
        self.start(number)

    def _warn(self, texts: Iterable[str]) -> None:
        """Log each warning once."""
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                log.warning(text)

    def _write(self, **further: Any) -> None:
        workers = [{"worker": n, "device": device} for n, device in sorted(self._devices.items())]
        shared = {"command": command_line(), "workers": workers}
        self._store.write_environment({**self._first["environment"], **shared, **further})


def _by_row(batches: Iterable[list[Step]]) -> Iterable[list[list[Step]]]:
    """Group batches by row: all cells of a task on the same examples."""
    return (list(row) for _, row in groupby(batches, lambda batch: batch[0].place[:3]))


def _differences(one: Any, other: Any) -> str:
    if not isinstance(one, dict):
        return f"{one}, not {other}"
    return ", ".join(f"{n} {one[n]}, not {other.get(n)}" for n in one if one[n] != other.get(n))
