"""How long a parser takes."""

import time
from collections.abc import Callable


def takes_less(work: Callable[[], object], seconds: float) -> bool:
    """Return whether one of at most three calls takes less CPU time.

    Other threads and a collection of garbage during one of the calls do not count.
    """

    def taken() -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    return any(taken() < seconds for _ in range(3))
