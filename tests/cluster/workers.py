"""Workers without models or Ray, which die where a test asks them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from specbench.cluster.crew import Facts, WorkerLost
from specbench.cluster.schedule import Batch, Row
from specbench.experiment.plan import Place


def row(task: int, example: int, cells: int = 2) -> Row:
    return Row(task, tuple(Batch(((task, 0, example, cell),)) for cell in range(cells)))


class FakeWorker:
    """Finds what ``found`` says of each place.

    Args:
        number: Its number.
        dies: Told of each place before it is found; True kills the worker there. Of None, at the
            start.
        log: Gets what happens.
    """

    def __init__(
        self,
        number: int,
        dies: Callable[[int, Place | None], bool],
        log: list[tuple[int, Any]],
    ) -> None:
        self.number, self.dies, self.log = number, dies, log

    def start(self) -> Facts:
        self._perhaps_die(None)
        return {"worker": self.number}

    def measure(self, row: Row) -> Iterator[tuple[Place | None, Any]]:
        for batch in row.batches:
            for place in batch.places:
                self._perhaps_die(place)
                yield place, f"by {self.number}"

    def end(self) -> Facts:
        return {"end": self.number}

    def dismiss(self) -> None:
        self.log.append((self.number, "dismissed"))

    def _perhaps_die(self, place: Place | None) -> None:
        if self.dies(self.number, place):
            self.log.append((self.number, place))
            raise WorkerLost("killed")
