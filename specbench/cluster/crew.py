"""A crew of workers that carries out a schedule.

Each worker has a thread here that speaks with it; all that is decided is decided in the thread that
takes the events of ``carry_out``, so nothing needs a lock. A worker that dies is replaced for as
long as there is work.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from specbench.cluster.schedule import MOST_TRIES, Row, Schedule
from specbench.errors import RunError
from specbench.experiment.plan import Place

MOST_STARTS = 3  # of workers that die one after the other before they are ready
PATIENCE = 0.2  # seconds without an event after which the crew says that it waits

Facts = Mapping[str, Any]


class WorkerLost(Exception):
    """A worker died or cannot be reached; the message says what is known of why."""


class Worker(Protocol):
    """Decodes elsewhere, and answers when asked."""

    def start(self) -> Facts:
        """Make ready, and return what is to be known of the worker and where it is.

        Raises:
            SpecbenchError: No worker can be made ready.
            WorkerLost: This one died.
        """

    def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
        """Decode a row; yield each place with what was found of it as soon as it is there.

        What the user should know comes as a sentence without a place.

        Raises:
            WorkerLost: It died.
        """

    def end(self) -> Facts:
        """Return what is known only after all rows.

        Raises:
            WorkerLost: It died.
        """

    def dismiss(self) -> None:
        """Let it go at once, whatever it does."""


class Ready(NamedTuple):
    """A worker waits for its first row."""

    worker: int
    facts: Facts


class Found(NamedTuple):
    """A sample is there; or without a place, a sentence for the user."""

    worker: int
    place: Place | None
    found: Any


class Lost(NamedTuple):
    """A worker died. Another takes its number, unless its like keep dying before they are ready."""

    worker: int
    reason: str


class GivenUp(NamedTuple):
    """A sample has seen too many workers die."""

    place: Place
    reason: str


class Ended(NamedTuple):
    """A worker has told what is known only after all rows."""

    worker: int
    facts: Facts


class Waiting(NamedTuple):
    """Nothing has happened for a moment."""


class _Through(NamedTuple):
    worker: int


class _Broken(NamedTuple):
    worker: int
    error: BaseException


Event = Ready | Found | Lost | GivenUp | Ended | Waiting
_Outbox = queue.SimpleQueue[Any]


@dataclass
class _Desk:
    """A worker as this side sees it: its next rows, and whether it could take one."""

    worker: Worker
    inbox: queue.SimpleQueue[Row | None] = field(default_factory=queue.SimpleQueue)
    ready: bool = False
    busy: bool = False

    def attend(self, number: int, outbox: _Outbox) -> None:
        """Ask the worker for one thing after the other and pass its answers on."""
        try:
            outbox.put(Ready(number, self.worker.start()))
            while (row := self.inbox.get()) is not None:
                for place, found in self.worker.measure(row):
                    outbox.put(Found(number, place, found))
                outbox.put(_Through(number))
            outbox.put(Ended(number, self.worker.end()))
        except WorkerLost as error:
            outbox.put(Lost(number, str(error)))
        except BaseException as error:  # raised again by whoever takes the events
            outbox.put(_Broken(number, error))


def carry_out(
    hire: Callable[[int], Worker], workers: int, rows: Callable[[Facts], Iterable[Row]]
) -> Iterator[Event]:
    """Have workers decode rows until nothing is left; yield what happens.

    Args:
        hire: Returns a worker, new or known, for a number.
        workers: How many, at least 1.
        rows: Returns the work, given the facts of the first worker that is ready.

    Raises:
        SpecbenchError: A worker says that it cannot be made ready, or several in a row died.
    """
    crew = _Crew(hire, rows)
    try:
        for number in range(workers):
            crew.place(number)
        while not crew.through:
            yield from crew.events()
        crew.send_home()
        while crew.desks:
            yield from crew.events()
    finally:
        for desk in crew.desks.values():
            desk.worker.dismiss()


class _Crew:
    """The desks, and what the crew does about each event."""

    def __init__(
        self, hire: Callable[[int], Worker], rows: Callable[[Facts], Iterable[Row]]
    ) -> None:
        self.desks: dict[int, _Desk] = {}
        self._hire, self._rows = hire, rows
        self._schedule: Schedule | None = None
        self._outbox: _Outbox = queue.SimpleQueue()
        self._false_starts: Counter[int] = Counter()
        self._leaving = False

    @property
    def through(self) -> bool:
        """Whether all has been found or given up, and nobody is at work."""
        busy = any(desk.busy for desk in self.desks.values())
        return self._schedule is not None and not self._schedule.left and not busy

    def place(self, number: int) -> None:
        """Set a worker to its desk."""
        desk = self.desks[number] = _Desk(self._hire(number))
        arguments = (number, self._outbox)
        threading.Thread(target=desk.attend, args=arguments, daemon=True).start()

    def send_home(self) -> None:
        """Ask those that are ready for their last words, and dismiss the others."""
        self._leaving = True
        for number, desk in list(self.desks.items()):
            desk.inbox.put(None)
            if not desk.ready:
                self.desks.pop(number).worker.dismiss()

    def events(self) -> Iterator[Event]:
        """Wait for an event, do what follows from it, and yield it."""
        try:
            event = self._outbox.get(timeout=PATIENCE)
        except queue.Empty:
            yield Waiting()
            return
        if event.worker not in self.desks:
            return  # of one that was dismissed
        desk = self.desks[event.worker]
        if isinstance(event, _Broken):
            raise event.error
        if isinstance(event, Lost):
            yield event
            yield from self._replace(event)
            return
        if isinstance(event, Ready):
            desk.ready = True
            if self._schedule is None:
                self._schedule = Schedule(self._rows(event.facts))
        elif isinstance(event, Found) and event.place is not None:
            self._known.found(event.worker, event.place)
        elif isinstance(event, _Through):
            desk.busy = False
            self._known.ended(event.worker)
        elif isinstance(event, Ended):
            del self.desks[event.worker]
        self._occupy()
        if not isinstance(event, _Through):
            yield event

    def _replace(self, event: Lost) -> Iterator[Event]:
        """Give back the work of a worker that died, and put another in its place."""
        number, reason = event
        desk = self.desks.pop(number)
        desk.worker.dismiss()
        if self._schedule is not None:
            for place in self._schedule.lost(number):
                yield GivenUp(place, f"given up after {MOST_TRIES} workers died of it: {reason}")
        self._false_starts[number] = 0 if desk.ready else self._false_starts[number] + 1
        if self._false_starts[number] >= MOST_STARTS:
            if not any(other.ready for other in self.desks.values()):
                raise RunError(
                    f"a worker died {MOST_STARTS} times before it was ready, the last time of: "
                    f"{reason}"
                )
        elif not (self._leaving or self.through):
            self.place(number)
        self._occupy()

    @property
    def _known(self) -> Schedule:
        assert self._schedule is not None
        return self._schedule

    def _occupy(self) -> None:
        """Give a row to everyone who has none."""
        if self._schedule is None or self._leaving:
            return
        for number, desk in self.desks.items():
            if desk.ready and not desk.busy and (row := self._schedule.take(number)):
                desk.busy = True
                desk.inbox.put(row)
