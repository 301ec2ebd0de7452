"""Execute a plan: workers decode, and only this process writes files.

The unit of work is a row: all cells of a task on the same examples. One worker decodes a whole row
without interruption, so methods are compared on the same device at the same time. This process is
the only worker, or Ray starts several, see ``ray_pool``. Nothing here imports torch.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any

from specbench.errors import RunError, shown
from specbench.experiment.environment import command_line
from specbench.experiment.folders import as_json
from specbench.experiment.plan import Plan, SampleIndex, Step
from specbench.experiment.progress import Display
from specbench.experiment.rounding import Fork, Lead, compare_greedy
from specbench.experiment.store import Store
from specbench.experiment.workers import Pool, WorkerLostError
from specbench.files import write_atomically
from specbench.runs.configuration import differences_of
from specbench.runs.labels import method_label
from specbench.runs.model import ERROR
from specbench.runs.records import latest_records, write_examples
from specbench.runs.run import ENVIRONMENT, read_run

MOST_TRIES = 3  # attempts at a task during which workers die

log = logging.getLogger(__name__)

# Work for one worker: batches of one cell each.
Row = deque[list[SampleIndex]]


def execute(
    plan: Plan,
    store: Store,
    pool: Pool | None = None,
    display: Display | None = None,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Decode all pending steps of a plan, and record each as soon as it is decoded.

    ``stop`` is called after each sample, and while no result is available: a run that it stops
    raises ``KeyboardInterrupt``. Without a ``pool``, this process decodes.
    """
    pool, display = pool or Pool(), display or Display(len(plan))
    execution = _Execution(plan, store, pool, display, stop)
    try:
        for number, _ in zip(range(pool.size), _rows(plan), strict=False):
            execution.start(number)
        while execution.unfinished:
            execution.proceed()
    except BaseException:
        execution.dismiss()
        raise
    execution.close()


class _Execution:
    """Assigns pending rows to workers, and reassigns the row of a worker that dies."""

    def __init__(
        self, plan: Plan, store: Store, pool: Pool, display: Display, stop: Callable[[], bool]
    ) -> None:
        self._plan, self._store, self._pool = plan, store, pool
        self._display, self._stop = display, stop
        self._shared = pool.share(plan)
        self._requests: dict[Any, tuple[int, Row | None]] = {}  # None while a worker starts
        self._idle: set[int] = set()
        self._pending: dict[int, deque[Row]] | None = None  # rows by task; None before any is ready
        self._task_of: dict[int, int] = {}  # the task that each worker is warmed up for
        self._deaths: Counter[SampleIndex] = Counter()
        self._first: Mapping[str, Any] = {}
        self._devices: dict[int, str] = {}
        self._decodes = False  # whether any sample was pending

    @property
    def unfinished(self) -> bool:
        """Whether any sample is pending or being decoded."""
        busy = any(row for _, row in self._requests.values())
        return busy or self._pending is None or any(self._pending.values())

    def start(self, number: int) -> None:
        """Make a worker load the pair; Ray retries if the worker dies."""
        self._requests[self._pool.ask(number, "start", self._shared)] = (number, None)
        self._show(number, "loading")
        if not self._pool.separate:
            of_pair = len(self._plan.part(servers=False))
            self._display.doing("loading the models" if of_pair else "asking the servers")

    def proceed(self) -> None:
        """Wait briefly for results, record them, and give work to idle workers."""
        references = self._pool.wait(self._requests)
        if not references and self._stop():
            raise KeyboardInterrupt
        for reference in references:
            number, row = self._requests.pop(reference)
            try:
                answer = self._pool.answer(reference)
            except WorkerLostError as error:
                self._lost(number, row, str(error))
                continue
            if row is None:
                self._ready(number, answer)
                continue
            for index, record in answer:
                self._display(*map(vars, self._store.record(self._plan.step(index), record)))
                if self._stop():
                    raise KeyboardInterrupt
            row.popleft()
            self._give(number, row)
        for number in sorted(self._idle):
            if (task := self._choose(number)) is not None and self._pending:
                self._idle.remove(number)
                self._task_of[number] = task
                self._give(number, self._pending[task].popleft())

    def dismiss(self) -> None:
        """Stop the busy workers."""
        for number, _ in self._requests.values():
            self._pool.dismiss(number)

    def close(self) -> None:
        """Sync the last samples, and collect the workers' facts that are known only at the end."""
        self._display(*map(vars, self._store.sync()))
        requests = {number: self._pool.ask(number, "end", retry=False) for number in self._idle}
        greedy = self._greedy_texts()
        endings: dict[int, Mapping[str, Any]] = {}
        for number, reference in requests.items():
            with suppress(WorkerLostError):
                endings[number] = self._pool.answer(reference)
            self._show(number, "done")
        self._write_environment(
            warm_ups=[
                ({"worker": number} if self._pool.separate else {}) | warm_up
                for number, closing in endings.items()
                for warm_up in closing["warm_ups"]
            ],
            engine=", ".join(sorted({closing["engine"] for closing in endings.values()})),
            **({"greedy_texts": greedy} if greedy else {}),
        )

    def _greedy_texts(self) -> list[dict[str, Any]]:
        """Compare greedy texts with those without speculation, see ``rounding``."""
        if self._plan.settings.temperature > 0 or self._plan.is_benchmark or not self._idle:
            return []
        records = latest_records(self._store.folder)
        cells = list(compare_greedy(self._plan, records, self._first["engine"]))
        forks = dict.fromkeys(fork for cell in cells for fork in cell.forks)
        leads: dict[Fork, Lead] = {}
        tolerance = 0.0
        with suppress(WorkerLostError):
            if forks:
                self._display.doing("reading texts where greedy ones differ")
                request = self._pool.ask(min(self._idle), "leads", [*forks], retry=False)
                leads, tolerance = self._pool.answer(request)
        return [cell.describe(leads, tolerance) for cell in cells]

    def _ready(self, number: int, opening: Mapping[str, Any]) -> None:
        """Register a worker; refuse one with other models or another engine than the first."""
        self._first = self._first or opening
        for name in ("models", "engine"):
            if opening[name] != self._first[name]:
                apart = differences_of(opening[name], self._first[name], set())
                values = ", ".join(f"{d.name} {d.first}, not {d.second}".strip() for d in apart)
                raise RunError(
                    f"worker {number} ({opening['device']}) differs in its {name} from the first: "
                    f"{values}; use the same models and versions on all machines"
                )
        if self._pending is None:
            self._pending = self._pending_rows()
            self._warn_of_another_machine(opening["environment"])
        self._devices[number] = opening["device"]
        self._show(number, "decoding", opening["device"])
        self._write_environment()
        self._idle.add(number)

    def _warn_of_another_machine(self, environment: Mapping[str, Any]) -> None:
        """Warn if recorded samples were measured on another processor or GPU than new ones."""

        def machine(facts: Mapping[str, Any]) -> str:
            gpus = {str(gpu.get("name")) for gpu in facts.get("torch", {}).get("gpus") or ()}
            return ", ".join(filter(None, [facts.get("cpu", {}).get("model"), *sorted(gpus)]))

        before = machine(read_run(self._store.folder, required=False).environment.plain())
        goes_on = self._store.resumed and any((self._pending or {}).values())
        if goes_on and before not in ("", machine(environment)) and not self._pool.separate:
            log.warning(
                f"{self._store.resumed} samples were measured on another machine "
                f"({shown(before)}): times of new samples are not comparable with theirs"
            )

    def _pending_rows(self) -> dict[int, deque[Row]]:
        """Return the pending rows of the plan by task index."""
        plan, store = self._plan, self._store
        write_examples(store.folder, {task.task.name: task.examples for task in plan.tasks})
        store.expect(plan, self._first["models"], self._first["engine"])
        pending_rows: dict[int, deque[Row]] = {}
        done = 0
        rows = [*_rows(plan)]
        if store.failed:  # they come last: failures in a row stop a run of servers
            rows.sort(key=lambda row: any(map(store.has_failed, row)))
        for batches in rows:
            row: Row = deque()
            for batch in batches:
                if store.missing(batch):  # then all of it: its steps share the time of the batch
                    row.append([step.place for step in batch])
                else:
                    done += sum(len(step.turns) for step in batch)
            if row:
                pending_rows.setdefault(batches[0][0].place[0], deque()).append(row)
        self._display.resumed(done)
        return pending_rows

    def _choose(self, worker: int) -> int | None:
        """Choose a task: the one the worker is warm for, else the one with most rows per worker.

        A single worker follows the order of the plan.
        """
        rows = {task: len(rows) for task, rows in (self._pending or {}).items() if rows}
        if self._task_of.get(worker) in rows:
            return self._task_of[worker]
        if self._pool.size == 1:
            return min(rows, default=None)
        busy = Counter(task for other, task in self._task_of.items() if other != worker)
        return max(rows, key=lambda task: rows[task] / (1 + busy[task]), default=None)

    def _give(self, number: int, row: Row) -> None:
        """Make a worker decode the next batch of a row; without a batch it becomes idle."""
        if row:
            self._decodes = True
            step = self._plan.step(row[0][0])
            label = method_label(vars(self._plan.identify(step, self._first["engine"])))
            self._display.doing(label, step.plan.task.name)
            reference = self._pool.ask(number, "measure", row[0], retry=False)
            self._requests[reference] = (number, row)
        else:
            self._idle.add(number)

    def _lost(self, number: int, row: Row | None, reason: str) -> None:
        """Reassign the work of a worker that died, and restart the worker.

        Samples during which ``MOST_TRIES`` workers died are recorded as failed. The rest of the row
        is queued behind all other rows, so that a temporary outage does not hit the same samples
        again.
        """
        self._show(number, "lost, restarting")
        if row is None:
            if not self._requests and not self._idle:
                raise RunError(
                    f"a worker died {MOST_TRIES} times before it was ready; last reason: {reason}"
                )
            self._show(number, "lost")
            return
        log.warning(f"worker {number} is lost, other workers take over: {reason}")
        suspects = row.popleft()
        self._deaths.update(suspects)
        if retried := [index for index in suspects if self._deaths[index] < MOST_TRIES]:
            row.appendleft(retried)
        for index in sorted({*suspects} - {*retried}):
            error = f"gave up after {MOST_TRIES} workers died while decoding it: {reason}"
            for step in self._plan.step(index).turns:
                identity = self._plan.identify(step, self._first["engine"])
                failed = identity.filled(status=ERROR, error=error)
                self._display(*map(vars, self._store.record(step, failed)))
        if row and self._pending is not None:
            self._pending.setdefault(row[0][0][0], deque()).append(row)
        self._task_of.pop(number, None)
        self.start(number)

    def _show(self, number: int, state: str, device: str = "") -> None:
        if self._pool.separate:
            self._display.worker(number, state, device)

    def _write_environment(self, **closing: Any) -> None:
        complete = self._store.resumed == len(self._plan) and not self._decodes
        if complete and (self._store.folder / ENVIRONMENT).is_file():
            return  # which is that of the samples
        shared: dict[str, Any] = {"command": command_line()}
        if self._pool.separate:
            devices = sorted(self._devices.items())
            shared["workers"] = [{"worker": n, "device": device} for n, device in devices]
        text = as_json({**self._first["environment"], **shared, **closing})
        write_atomically(self._store.folder / ENVIRONMENT, text)


def _rows(plan: Plan) -> Iterator[list[list[Step]]]:
    """Yield the batches of a plan by row: all cells of a task on the same examples."""
    for _, row in groupby(plan.batches(), lambda batch: batch[0].place[:3]):
        yield list(row)
