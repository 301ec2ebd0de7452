"""One prompt of a task and what its answer is compared with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One prompt and what its answer is compared with.

    Attributes:
        id: Name of the example, unique within its task and split.
        prompt: Text given to the models.
        reference: Right answer, where there is one.
        tests: Python asserts that a generated program must pass.
    """

    id: str
    prompt: str
    reference: str | None = None
    tests: tuple[str, ...] = ()
