"""How far a command is, in a line a minute on stderr where it is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic

from specbench.errors import printable

FIRST, EVERY = 30.0, 60.0  # seconds until the first line, and between two


class Lines:
    """Knows when the next line is due: a command may have many steps, but has one line a minute."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a command, which has no line if it ends soon."""
        self._due = monotonic() + FIRST

    def print_due(self, progress: Callable[[], str]) -> None:
        """Print a line if it is due and there is progress to tell."""
        if monotonic() >= self._due and (text := progress()):
            self._due = monotonic() + EVERY
            with suppress(OSError, ValueError):  # stderr was closed
                print("progress:", printable(text), file=sys.stderr, flush=True)

    @contextmanager
    def printed(self, progress: Callable[[], str]) -> Iterator[None]:
        """Print lines within the context, also while a batch takes minutes."""
        ended = Event()

        def proceed() -> None:
            while not ended.wait(max(self._due - monotonic(), 1.0)):
                self.print_due(progress)

        thread = Thread(target=proceed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


LINES = Lines()
