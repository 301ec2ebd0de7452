"""How long a parser takes."""

import time
from collections.abc import Callable


def least_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of three calls.

    Other threads and a collection of garbage during one of the calls do not count.
    """
    taken = []
    for _ in range(3):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return min(taken)
