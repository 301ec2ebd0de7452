"""Which worker decodes what next, and what becomes of the work of one that dies.

Nothing here knows what a worker is; places stand for samples. Work is given out by rows: the
samples of one example, or of one group of a batch, by all cells of their task. A row is decoded on
one device, so methods are compared on the same device at the same time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from specbench.experiment.plan import Place

MOST_TRIES = 3  # of a sample whose workers die


@dataclass(frozen=True)
class Batch:
    """Samples of one cell that are decoded side by side."""

    places: tuple[Place, ...]


@dataclass(frozen=True)
class Row:
    """Work for one worker without a break.

    Attributes:
        task: Number of the task; whoever has decoded some of a task has warmed up for it.
        batches: In the order in which they are decoded.
    """

    task: int
    batches: tuple[Batch, ...]


class Schedule:
    """Rows that wait and rows that are being decoded.

    Attributes:
        left: Samples of which nothing has been found yet.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._waiting: dict[int, deque[Row]] = {}
        self._at_work: dict[int, list[list[Place]]] = {}
        self._task_of: dict[int, int] = {}  # worker to the task that it is warm for
        self._deaths: Counter[Place] = Counter()
        self.left = 0
        for row in rows:
            self._waiting.setdefault(row.task, deque()).append(row)
            self.left += sum(len(batch.places) for batch in row.batches)

    def take(self, worker: int) -> Row | None:
        """Give a worker its next row, of the task it has decoded before if there are any left.

        Returns:
            None where no row waits now; one may come back from a worker that dies.
        """
        task = self._choose(worker)
        if task is None:
            return None
        row = self._waiting[task].popleft()
        self._task_of[worker] = task
        self._at_work[worker] = [list(batch.places) for batch in row.batches]
        return row

    def found(self, worker: int, place: Place) -> None:
        """Note that a sample of a worker's row is there."""
        batches = self._at_work[worker]
        while not batches[0]:
            batches.pop(0)
        batches[0].remove(place)
        self.left -= 1

    def ended(self, worker: int) -> None:
        """Note that a worker is through with its row."""
        del self._at_work[worker]

    def lost(self, worker: int) -> list[Place]:
        """Take back what a worker that died has not found.

        It may have died of the first batch of which something is missing: samples that have seen
        three workers die so are given up. All else waits behind the other rows, so that machines
        that are taken away for a while do not strike the same samples again and again.

        Returns:
            The places given up.
        """
        task = self._task_of.pop(worker, 0)
        batches = [places for places in self._at_work.pop(worker, []) if places]
        if not batches:
            return []
        suspect, *others = batches
        self._deaths.update(suspect)
        given_up = [place for place in suspect if self._deaths[place] >= MOST_TRIES]
        again = [place for place in suspect if place not in given_up]
        rest = tuple(Batch(tuple(places)) for places in (again, *others) if places)
        if rest:
            self._waiting.setdefault(task, deque()).append(Row(task, rest))
        self.left -= len(given_up)
        return given_up

    def _choose(self, worker: int) -> int | None:
        """Choose a worker's task: its own, else the one with most rows for each at work on it."""
        rows = {task: len(waiting) for task, waiting in self._waiting.items() if waiting}
        own = self._task_of.get(worker)
        if own in rows:
            return own
        crews = Counter(task for other, task in self._task_of.items() if other != worker)
        return max(rows, key=lambda task: rows[task] / (1 + crews[task]), default=None)
