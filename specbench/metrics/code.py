"""pass@1: whether a generated program passes its tests, run by the sandbox.

See ``specbench.metrics.sandbox`` for what guards against what.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from specbench.metrics.code_text import helpers_of, program_of
from specbench.metrics.sandbox.launch import Limits, judge

if TYPE_CHECKING:
    from specbench.example import Example


def pass_at_1(text: str, example: Example) -> float:
    """Return 1 where the generated program passes the example's tests, else 0.

    Args:
        text: Generated text, see ``code_text.program_of`` for the program in it.
        example: Its ``tests`` run with what the program defines.

    Raises:
        UsageError: The system is not POSIX, or the example has no tests.
        RunError: The process that runs programs could not be started, or the tests are broken.
    """
    tests = (*helpers_of(example), *example.tests)
    return float(passes(program_of(text, example), tests, example.entry_point))


@lru_cache(maxsize=4096)
def passes(
    program: str, tests: tuple[str, ...], entry_point: str = "", limits: Limits | None = None
) -> bool:
    """Run a program and its tests in processes of their own; equal ones run only once.

    Args:
        program: Python source.
        tests: Python statements.
        entry_point: Function that the program must define, where that is known.
        limits: Time and memory; the default is ``Limits()``.

    Raises:
        UsageError: The system is not POSIX, or there are no tests.
        RunError: The process could not be started, or the tests are broken.
    """
    return judge(program, tests, entry_point, limits)[0]
