"""Carrying out a plan with several workers: they decode, and only this process writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Protocol

from specbench.cluster.crew import (
    Ended,
    Facts,
    Found,
    GivenUp,
    Lost,
    Ready,
    Waiting,
    Worker,
    carry_out,
)
from specbench.cluster.schedule import Batch, Row
from specbench.errors import RunError
from specbench.experiment.environment import command_line
from specbench.experiment.examples import write_examples
from specbench.experiment.ledger import Ledger, identity
from specbench.experiment.plan import Plan, Step
from specbench.experiment.progress import Report
from specbench.experiment.records import ERROR
from specbench.experiment.store import Store


class Watch(Protocol):
    """Is told how the workers are."""

    def __call__(self, worker: int, state: str, device: str = "") -> None:
        """A worker is in another state; its device is told where it is first known."""


def execute(
    plan: Plan,
    store: Store,
    report: Report,
    hire: Callable[[int], Worker],
    workers: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], object] = lambda text: None,
    watch: Watch = lambda worker, state, device="": None,
) -> None:
    """Decode every step of a plan that the store lacks, as ``experiment.execute`` does alone.

    Args:
        plan: What to do.
        store: Where the samples go, and what it has of them already.
        report: Called with each record; of a sample that was there, with what names it.
        hire: Returns a worker for a number.
        workers: How many at most.
        stop: Asked after each sample whether to stop there.
        note: Told what the user should know.
        watch: Told how the workers are.

    Raises:
        SpecbenchError: The pair or a head cannot be loaded, workers have different models, workers
            die before they are ready, or the disk cannot be written.
        KeyboardInterrupt: The run was stopped.
    """
    write_examples(store.folder, {t.task.name: t.examples for t in plan.tasks})
    log = _Log(plan, store, report)
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    workers = min(workers, sum(1 for _ in _rows(plan.batches())))
    for number in range(workers):
        watch(number, "loading")
    for event in carry_out(hire, workers, log.rows):
        match event:
            case Ready(worker, facts):
                log.ready(worker, facts)
                watch(worker, "decoding", facts["device"])
            case Found(_, place, found) if place is not None:
                log.record(plan.step(place), found)
            case Found(_, _, text):
                say(text)
            case GivenUp(place, reason):
                log.give_up(plan.step(place), reason)
            case Lost(worker, reason):
                say(f"worker {worker} is lost, its work goes to others: {reason}")
                watch(worker, "lost, starting again")
            case Ended(worker, facts):
                log.ended(worker, facts)
                watch(worker, "done")
            case Waiting():
                pass
        if stop():
            raise KeyboardInterrupt
    log.close()


class _Log:
    """What the workers find, on its way to the store."""

    def __init__(self, plan: Plan, store: Store, report: Report) -> None:
        self._plan, self._store, self._report = plan, store, report
        self._ledger: Ledger | None = None
        self._first: Facts = {}
        self._devices: dict[int, str] = {}
        self._after: dict[int, Facts] = {}

    def rows(self, facts: Facts) -> Iterator[Row]:
        """Yield the rows of what the store lacks of the plan, by the first worker's models."""
        models, engine = facts["models"], facts["engine"]
        ledger = self._ledger = Ledger(self._plan, self._store, self._report, models, engine)
        for row in _rows(self._plan.batches()):
            missing = filter(None, map(ledger.missing, row))
            batches = tuple(Batch(tuple(step.place for step in steps)) for steps in missing)
            if batches:
                yield Row(row[0][0].place[0], batches)

    def ready(self, worker: int, facts: Facts) -> None:
        """Write where the workers are; refuse one that would measure something else."""
        self._first = self._first or facts
        for name in ("models", "engine"):
            if facts[name] != self._first[name]:
                raise RunError(
                    f"worker {worker} ({facts['device']}) has another {name} than the first: "
                    f"{_differences(facts[name], self._first[name])}; give all machines the same "
                    "models and versions"
                )
        self._devices[worker] = facts["device"]
        self._write()

    def record(self, step: Step, found: dict[str, Any]) -> None:
        """Put a sample into the store."""
        assert self._ledger is not None
        self._ledger.record(step, found)

    def give_up(self, step: Step, reason: str) -> None:
        """Put into the store that a sample failed."""
        known = identity(step, self._plan, self._first["engine"])
        self.record(step, {**known, "status": ERROR, "error": reason})

    def ended(self, worker: int, facts: Facts) -> None:
        """Keep what a worker knows only now."""
        self._after[worker] = facts

    def close(self) -> None:
        """Write what is known of the environment only now."""
        self._write(
            warm_ups=[
                {"worker": n, **w} for n, facts in self._after.items() for w in facts["warm_ups"]
            ],
            gpus_at_the_end=[
                gpu for facts in self._after.values() for gpu in facts["gpus_at_the_end"]
            ],
            engine=_common(facts["engine"] for facts in self._after.values()),
        )

    def _write(self, **further: Any) -> None:
        workers = [
            {"worker": number, "device": device} for number, device in sorted(self._devices.items())
        ]
        own = {"command": command_line(), "workers": workers}
        self._store.write_environment({**self._first["environment"], **own, **further})


def _rows(batches: Iterable[list[Step]]) -> Iterator[list[list[Step]]]:
    """Yield together the batches of all cells of a task for the same examples."""
    for _, row in groupby(batches, lambda batch: batch[0].place[:3]):
        yield list(row)


def _differences(one: Any, other: Any) -> str:
    if not isinstance(one, dict):
        return f"{one}, not {other}"
    return ", ".join(f"{n} {one[n]}, not {other.get(n)}" for n in one if one[n] != other.get(n))


def _common(engines: Iterable[str]) -> str:
    """Name the engine; several where some worker had to fall back."""
    return ", ".join(sorted(set(engines)))
