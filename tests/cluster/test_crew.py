import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specbench.cluster.crew import (
    MOST_STARTS,
    Ended,
    Event,
    Found,
    GivenUp,
    Lost,
    Ready,
    Waiting,
    WorkerLost,
    carry_out,
)
from specbench.cluster.schedule import MOST_TRIES, Row
from specbench.errors import RunError, UsageError
from specbench.experiment.plan import Place

from .workers import FakeWorker, row

ROWS = [row(0, example) for example in range(6)]
PLACES = sorted(place for each in ROWS for batch in each.batches for place in batch.places)
Dies = Callable[[int, Place | None], bool]


def never(worker: int, place: Place | None) -> bool:
    return False


class Crew:
    """Events of a crew of fake workers."""

    def __init__(self, workers: int, dies: Dies = never, rows: list[Row] = ROWS) -> None:
        self.log: list[tuple[int, Any]] = []
        self.hired: list[int] = []

        def hire(number: int) -> FakeWorker:
            self.hired.append(number)
            return FakeWorker(number, dies, self.log)

        self.events: list[Event] = [
            event
            for event in carry_out(hire, workers, lambda facts: rows)
            if not isinstance(event, Waiting)
        ]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_all_is_found_once_and_every_ready_worker_has_a_last_word() -> None:
    crew = Crew(3)
    assert sorted(event.place for event in crew.of(Found)) == PLACES
    ready = sorted(event.worker for event in crew.of(Ready))
    assert sorted(event.worker for event in crew.of(Ended)) == ready
    assert crew.of(Lost) == []


def test_with_nothing_to_do_the_crew_goes_home() -> None:
    crew = Crew(2, rows=[])
    assert crew.of(Found) == []
    assert crew.of(Ended)


def test_a_worker_that_dies_is_replaced_and_its_work_done() -> None:
    deaths = iter([True, False])

    def dies(worker: int, place: Place | None) -> bool:
        return place == (0, 0, 2, 1) and next(deaths)

    crew = Crew(1, dies)
    assert crew.hired == [0, 0]
    assert sorted(event.place for event in crew.of(Found)) == PLACES
    assert [(e.worker, e.reason) for e in crew.of(Lost)] == [(0, "killed")]


def test_what_kills_its_workers_is_given_up_with_the_reason() -> None:
    poison = (0, 0, 3, 0)
    crew = Crew(2, lambda worker, place: place == poison)
    assert len(crew.of(Lost)) == MOST_TRIES
    (given_up,) = crew.of(GivenUp)
    assert given_up.place == poison
    assert given_up.reason == "given up after 3 workers died of it: killed"
    assert sorted(e.place for e in crew.of(Found)) == [p for p in PLACES if p != poison]


def test_a_machine_on_which_no_worker_starts_is_done_without() -> None:
    started = threading.Event()

    def dies(worker: int, place: Place | None) -> bool:
        if worker == 0 and place is None:
            started.wait(5)  # the other one is ready by then
            return True
        if place is not None:
            started.set()
            threading.Event().wait(0.02)
        return False

    crew = Crew(2, dies)
    assert sorted(event.place for event in crew.of(Found)) == PLACES
    assert crew.hired.count(0) <= MOST_STARTS


def test_workers_that_all_die_before_they_are_ready_end_the_run() -> None:
    with pytest.raises(RunError, match=r"died 3 times before it was ready.*killed"):
        Crew(1, lambda worker, place: place is None)


def test_what_no_worker_can_have_ends_the_run_at_once() -> None:
    def dies(worker: int, place: Place | None) -> bool:
        raise UsageError("no such model")

    with pytest.raises(UsageError, match="no such model"):
        Crew(1, dies)


def test_workers_are_dismissed_where_the_events_are_left() -> None:
    log: list[tuple[int, Any]] = []
    events = carry_out(lambda number: FakeWorker(number, never, log), 2, lambda facts: ROWS)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert sorted(log) == [(0, "dismissed"), (1, "dismissed")]


def test_who_waits_takes_over_from_one_that_dies_at_the_end() -> None:
    """The only row left is with a worker that dies; the other has long been idle."""
    tried: list[int] = []
    idle = threading.Event()

    class Slow(FakeWorker):
        def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
            tried.append(self.number)
            if len(tried) == 1:
                idle.wait(0.5)
                raise WorkerLost("killed")
            yield from super().measure(row)

    events = carry_out(lambda n: Slow(n, never, []), 2, lambda facts: [row(0, 0)])
    found = [event.place for event in events if isinstance(event, Found)]
    assert found == [(0, 0, 0, 0), (0, 0, 0, 1)]
    assert len(set(tried)) == 2
