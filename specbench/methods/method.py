"""Methods: verification rules with checked parameters, and the decorator that declares them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.errors import UsageError, require
from specbench.methods.laws import Law
from specbench.methods.verdict import Rule
from specbench.plugins import F, declare

BOTH_MODELS = ("both_temperature", "both_min_p")
"""Parameters that change how both models are sampled, and not the rule."""


COMPUTED = "of"
"""A parameter of `synthetic` in benchmarks: the method whose rule is computed as well.

The parameters of that method follow it, and its rule replaces rejected drafts.
"""

RESERVED = (
    *("method", "draft_length", "drafter", "session", "timing", "server", "engine"),
    *("acceptance", "length", COMPUTED, *BOTH_MODELS),
)
"""Names that runs and benchmarks have beside the parameters of a rule."""

_SWITCH = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


class Rates(str):
    """A rate from 0 to 1, or one for each position as in 0.8/0.6; the last one holds for the rest.

    Raises:
        ValueError: The text has another form.
    """

    def __new__(cls, text: object) -> Rates:
        """Return the rates in their shortest form."""
        rates = [float(part) for part in str(text).split("/")]
        if not all(0 <= rate <= 1 for rate in rates):
            raise ValueError("must be from 0 to 1")
        return super().__new__(cls, "/".join(f"{rate:.12g}" for rate in rates))

    @property
    def by_position(self) -> tuple[float, ...]:
        """The rates of the first positions, as rules and laws take them."""
        return tuple(map(float, self.split("/")))


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method; numbers have bounds, all kinds may have choices."""

    name: str  # keyword argument of the rule
    default: Any
    help: str  # one line
    kind: type = float  # or int, bool or str
    ge: float | None = None  # inclusive lower bound
    gt: float | None = None  # exclusive lower bound
    le: float | None = None  # inclusive upper bound
    choices: tuple[Any, ...] = ()  # permitted values; empty for any
    # (name, value) of an earlier parameter if this entry applies to that value only; the value
    # None stands for a parameter without default that is not given
    when: tuple[str, str | None] | None = None
    # value at which the method emits the target's distribution, if any
    exact: float | None = None
    sign: str | None = None  # written before the value in labels; None writes "name="

    @property
    def permitted(self) -> str:
        """Description of the permitted values, such as "a number from 0 to 1"."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.kind is Rates:
            return "a rate from 0 to 1, or one for each position as in 0.8/0.6"
        if self.kind is str:
            return "a name or a path"
        if self.kind is bool:
            return "true or false"
        bounds = {"from": self.ge, "above": self.gt}
        low = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        high = [] if self.le is None else [f"{'to' if low else 'up to'} {self.le:g}"]
        if not low and not high:
            return "any finite number" if self.kind is float else "any whole number"
        return " ".join(["a number" if self.kind is float else "a whole number", *low, *high])

    def check(self, value: object) -> Any:
        """Convert `value` to the parameter's type; refuse what is not permitted."""
        converted: Any
        try:
            if issubclass(self.kind, str) and isinstance(value, float):
                value = f"{value:.12g}"  # a text that reads like a number, from a table
            if self.kind is bool:
                converted = _SWITCH[str(value).lower()]
            else:
                converted = self.kind(float(value) if self.kind is int else value)  # type: ignore[arg-type]
            if self.kind is int and converted != float(value):  # type: ignore[arg-type]
                converted = None
        except (KeyError, TypeError, ValueError, OverflowError):
            converted = None
        if converted is None or not self._permits(converted):
            condition = f" with {self.when[0]} {self.when[1]}" if self.when else ""
            raise UsageError(f"{self.name} cannot be {value}{condition}: give {self.permitted}")
        return converted

    def _permits(self, value: Any) -> bool:
        if self.choices or issubclass(self.kind, str):
            return not self.choices or value in self.choices
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
        )


HEAD = Parameter(
    "head",
    None,
    "a trained head's folder or file, a folder with one per task or with acceptance-* folders of "
    "them, or bundled, results or untrained (w = 0.5 everywhere); repeat or separate by commas; by "
    "default bundled, else results/heads/<pair>",
    str,
    sign="",
)


@dataclass(frozen=True)
class Method:
    """A decoding method."""

    name: str
    summary: str  # one line
    source: str  # paper; file or package of the user's own rule
    rule: Rule | None  # the verification rule; None without a draft
    # parameters of the rule; of a method with a control, the value of that policy
    parameters: tuple[Parameter, ...] = ()
    control: str | None = None  # policy of how many tokens are drafted; None always drafts N
    exact: bool = False  # whether it emits the target's distribution for all parameters
    # Whether it judges the drafts of a round jointly. After the first position of a round, only the
    # emitted tokens then have a closed-form law, not the accepted drafts.
    joint: bool = False
    law: Law | None = None  # without one, ``check`` cannot compare all draws
    digest: str | None = None  # of the source of the user's own rule
    verifies: bool = True  # whether acceptance depends on the models; labels say so if not

    def takes(self, name: str) -> bool:
        """Return whether the method has a parameter."""
        return any(parameter.name == name for parameter in self.parameters)

    def emits_target(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether the method emits the target's distribution with these parameters."""
        return self.exact or any(
            p.exact is not None and parameters.get(p.name) == p.exact for p in self.parameters
        )

    def resolve(self, chosen: Mapping[str, object]) -> dict[str, Any]:
        """Return checked values of all parameters; None stands for the default."""
        values = {name: value for name, value in chosen.items() if value is not None}
        names = list(dict.fromkeys(parameter.name for parameter in self.parameters))
        for name in values:
            if not self.takes(name):
                takes = f"it takes {', '.join(names)}" if names else "it takes none, leave it out"
                raise UsageError(f"method '{self.name}' has no parameter '{name}': {takes}")
        resolved: dict[str, Any] = {}
        for parameter in self.parameters:
            name = parameter.name
            if not parameter.when or resolved.get(parameter.when[0]) == parameter.when[1]:
                if name in values:
                    resolved[name] = parameter.check(values[name])
                elif parameter.kind is not Rates:  # of which there are none, if none are given
                    resolved[name] = parameter.default
        return resolved


def rule(
    *parameters: Parameter,
    summary: str | None = None,
    source: str = "this project",
    law: Law | None = None,
    exact: bool = False,
    joint: bool = False,
    control: str | None = None,
    verifies: bool = True,
) -> Callable[[F], F]:
    """Declare a function as a rule; the function itself is not changed.

    Args:
        parameters: Default, bounds and help of parameters. In a file of your own, all others
            have the defaults of the function.
        summary: One line; by default the first line of the docstring.
        source: Paper or project.
        law: The distribution that the rule emits, ``law(at: Next, **parameters) -> Split``, see
            ``specbench.methods.laws``. ``check`` uses it.
        exact: Whether it emits the target's distribution for all parameters.
        joint: Whether it judges the drafts of a round jointly.
        control: Policy of how many tokens are drafted; its value is the parameter.
        verifies: Whether acceptance depends on the models.
    """
    require(
        not any(map(callable, parameters)),
        "@rule without parentheses declares nothing: write @rule(), or leave it out",
    )

    def declare_rule(function: F) -> F:
        lines = (inspect.getdoc(function) or "").splitlines()
        method = Method(
            function.__name__.replace("_", "-"),
            summary or next(iter(lines), ""),
            source,
            function,
            parameters,
            control,
            exact,
            joint,
            law,
            verifies=verifies,
        )
        return declare(function, method)

    return declare_rule
