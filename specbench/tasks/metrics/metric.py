"""The decorator that declares a metric, in this package and in a file of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from specbench.plugins import declare
from specbench.tasks.example import Example

Need = Literal["reference", "tests", "greedy", "code_prefix"]
Score = Callable[[str, Example], float]

GREEDY: Final = "greedy"  # the need of metrics that compare with the target's own greedy text
F = TypeVar("F", bound=Score)


@dataclass(frozen=True)
class Metric:
    """A metric and its name in task files."""

    name: str
    function: Score  # of a text and its example; a score in [0, 1]
    unit: str  # name of the score in tables and on axes
    needs: Need = "reference"  # the field of an example that the metric uses; see ``Example``
    scale: float = 100.0  # factor from a score in [0, 1] to the displayed number
    executes: bool = False  # scoring runs generated code
    digest: str | None = None  # of the source of the user's own metric

    @property
    def meaning(self) -> str:
        """What the score is: the first line of the function's docstring."""
        line = (inspect.getdoc(self.function) or "").partition("\n")[0]
        return line.removeprefix("Return ").rstrip(".").replace("``", "`")

    def suits(self, example: Example) -> bool:
        """Return whether an example has what the metric needs; a greedy text may be empty."""
        value = getattr(example, self.needs)
        return value is not None if self.needs == GREEDY else bool(value)


def metric(
    unit: str = "", *, name: str | None = None, needs: Need = "reference", executes: bool = False
) -> Callable[[F], F]:
    """Declare a function of a text and its example as a metric; it is not changed.

    Args:
        unit: Name of the score in tables and on axes; own metrics are shown by their names.
        name: Name in task files; by default the function's, with hyphens.
        needs: The field of an example without which there is no score.
        executes: Whether scoring runs generated code.
    """
    options: dict[str, Any] = {"unit": unit, "needs": needs, "executes": executes}
    return lambda function: declare(
        function, Metric(name or function.__name__.replace("_", "-"), function, **options)
    )
