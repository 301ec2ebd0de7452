"""What a method is: a rule with checked parameters. Nothing here imports torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.methods.control import DraftControl
    from specbench.methods.verdict import Rule


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method; bounds hold for numbers, choices for strings."""

    name: str  # keyword argument of the rule
    default: Any  # value when none is given
    help: str  # one line for the user
    kind: type = float  # or str
    ge: float | None = None  # smallest permitted number
    gt: float | None = None  # the same, not itself permitted
    le: float | None = None  # largest permitted number
    grid: tuple[float, ...] = ()  # values that a sweep goes through by default
    choices: tuple[str, ...] = ()  # permitted strings, empty for any
    # (name, value) of an earlier parameter, where this entry holds for that value only
    when: tuple[str, str] | None = None
    # the value at which the method emits the target's distribution, if there is one
    exact: float | None = None

    @property
    def permitted(self) -> str:
        """The permitted values in words, as in "a number from 0 to 1"."""
        if self.kind is not float:
            return f"one of {', '.join(self.choices)}" if self.choices else "a name or a path"
        bounds = {"from": self.ge, "above": self.gt}
        low = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        high = [] if self.le is None else [f"{'to' if low else 'up to'} {self.le:g}"]
        return " ".join(["a number", *low, *high]) if low or high else "any finite number"

    def check(self, value: object) -> Any:
        """Return `value` as this parameter's kind.

        Raises:
            UsageError: it is not of that kind or not permitted.
        """
        try:
            converted = self.kind(value)
        except (TypeError, ValueError):
            converted = None
        if converted is None or not self._permits(converted):
            place = f" with {self.when[0]} {self.when[1]}" if self.when else ""
            raise UsageError(f"{self.name} cannot be {value}{place}: give {self.permitted}")
        return converted

    def _permits(self, value: Any) -> bool:
        if self.kind is not float:
            return not self.choices or value in self.choices
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
        )


@dataclass(frozen=True)
class Method:
    """A decoding method."""

    name: str  # what the user types
    summary: str  # one line for the user
    source: str  # the paper
    # "module:function" of the verification rule, in this package; None where nothing is drafted
    rule: str | None
    # what the rule takes besides the positions and the drafted tokens; of a method with a
    # control, what that takes
    parameters: tuple[Parameter, ...] = ()
    # likewise the class that decides how many tokens are drafted; None drafts N always
    control: str | None = None
    exact: bool = False  # true where it emits the target's distribution whatever its parameters

    def emits_target(self, parameters: Mapping[str, Any]) -> bool:
        """Tell whether the method emits the target's own distribution with these parameters."""
        return self.exact or any(
            p.exact is not None and parameters.get(p.name) == p.exact for p in self.parameters
        )

    def load(self) -> "Rule | None":
        """Import and return the verification rule; None where nothing is drafted."""
        return None if self.rule is None else _imported(self.rule)

    def load_control(self) -> "type[DraftControl]":
        """Import and return the control of a method that has one."""
        assert self.control is not None
        control: type[DraftControl] = _imported(self.control)
        return control

    def resolve(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return a value for every parameter: the given one, checked, or the default for None.

        Raises:
            UsageError: a foreign parameter, or a value not permitted.
        """
        values = {name: value for name, value in given.items() if value is not None}
        names = list(dict.fromkeys(parameter.name for parameter in self.parameters))
        for name in values:
            if name not in names:
                takes = f"it takes {', '.join(names)}" if names else "it takes none, leave it out"
                raise UsageError(f"method '{self.name}' has no parameter '{name}': {takes}")
        resolved: dict[str, Any] = {}
        for parameter in self.parameters:
            name = parameter.name
            if not parameter.when or resolved[parameter.when[0]] == parameter.when[1]:
                known = name in values
                resolved[name] = parameter.check(values[name]) if known else parameter.default
        return resolved


def _imported(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(f"specbench.methods.{module}"), name)
