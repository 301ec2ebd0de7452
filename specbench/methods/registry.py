"""The methods by name: what each is, where it comes from and which parameters it takes.

A new method is one function and one entry here. Nothing in this module imports torch; a rule's
module is imported when the rule is loaded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specbench.errors import UsageError
from specbench.words import unknown

if TYPE_CHECKING:
    from specbench.methods.verdict import Rule


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method.

    Attributes:
        name: keyword argument of the rule.
        default: value when none is given.
        kind: float or str.
        help: one line for the user.
        low: smallest permitted number, None for no bound.
        high: largest permitted number, None for no bound.
        low_excluded: True where `low` itself is not permitted.
        choices: permitted strings, empty for any.
        required: True where the user must give a value.
        when: (name, value) of an earlier parameter, where this entry holds for that value only.
    """

    name: str
    default: Any
    kind: type
    help: str
    low: float | None = None
    high: float | None = None
    low_excluded: bool = False
    choices: tuple[str, ...] = ()
    required: bool = False
    when: tuple[str, str] | None = None

    @property
    def permitted(self) -> str:
        """The permitted values in words, as in "a number from 0 to 1"."""
        if self.kind is not float:
            return f"one of {', '.join(self.choices)}" if self.choices else "a name or a path"
        if self.low is None:
            return "any finite number" if self.high is None else f"a number up to {self.high:g}"
        low = f"{'above' if self.low_excluded else 'from'} {self.low:g}"
        return f"a number {low}" if self.high is None else f"a number {low} to {self.high:g}"

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
        if self.low_excluded and value == self.low:
            return False
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return math.isfinite(value) and low <= value <= high


@dataclass(frozen=True)
class Method:
    """A decoding method.

    Attributes:
        name: what the user types.
        summary: one line for the user.
        source: the paper.
        rule: "module:function" of the verification rule; None where nothing is drafted.
        parameters: what the rule takes besides the positions and the drafted tokens.
    """

    name: str
    summary: str
    source: str
    rule: str | None
    parameters: tuple[Parameter, ...] = ()

    def load(self) -> "Rule | None":
        """Import and return the verification rule; None where nothing is drafted."""
        if self.rule is None:
            return None
        module, function = self.rule.split(":")
        rule: Rule = getattr(import_module(module), function)
        return rule

    def resolve(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return a value for every parameter: the given one, checked, or the default.

        Args:
            given: values by parameter name; None means not given.

        Raises:
            UsageError: a foreign parameter, a value not permitted, a required one missing.
        """
        values = {name: value for name, value in given.items() if value is not None}
        names = list(dict.fromkeys(parameter.name for parameter in self.parameters))
        for name in values:
            if name not in names:
                takes = f"it takes {', '.join(names)}" if names else "it takes none, leave it out"
                raise UsageError(f"method '{self.name}' has no parameter '{name}': {takes}")
        resolved: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.when and resolved[parameter.when[0]] != parameter.when[1]:
                continue
            if parameter.name in values:
                resolved[parameter.name] = parameter.check(values[parameter.name])
            elif parameter.required:
                raise UsageError(
                    f"method '{self.name}' needs {parameter.name}: give {parameter.permitted}"
                )
            else:
                resolved[parameter.name] = parameter.default
        return resolved


def _alpha(
    rule: str, default: float, low: float | None, high: float | None, text: str
) -> Parameter:
    return Parameter("alpha", default, float, text, low=low, high=high, when=("rule", rule))


# The defaults of alpha lie well inside their ranges, between strict and draft-only; none is tuned.
_SPECCASCADE = (
    Parameter(
        "rule",
        "token-v3",
        str,
        "deferral rule: where the draft is trusted",
        choices=("chow", "diff", "opt", "token-v1", "token-v2", "token-v3"),
    ),
    _alpha("token-v3", 0.5, None, 1, "trust tokens with p >= (1 - alpha) max p; below 0 strict"),
    _alpha("token-v2", 0.2, -1, 1, "trust tokens with p >= max p - alpha; -1 strict"),
    _alpha("token-v1", 0.2, -1, 1, "trust tokens with q >= max p - alpha; -1 strict"),
    _alpha("opt", 0.5, None, None, "trust the draft where max q >= max p - alpha TV(p, q)"),
    _alpha("diff", 0.2, -1, 1, "trust the draft where max q >= max p - alpha; -1 strict"),
    _alpha("chow", 0.5, 0, 1, "trust the draft where max q >= 1 - alpha; 0 only where certain"),
)

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "autoregressive",
            "the target alone, one token a step",
            "-",
            rule=None,
        ),
        Method(
            "sd",
            "speculative decoding: the target's distribution, exactly",
            "arXiv:2211.17192, arXiv:2302.01318",
            rule="specbench.methods.rules:sd",
        ),
        Method(
            "lossy",
            "speculative decoding with lenience: accept with min(1, p / (l q))",
            "arXiv:2211.17192, appendix A.5",
            rule="specbench.methods.rules:lossy",
            parameters=(
                Parameter(
                    "lenience",
                    0.5,
                    float,
                    "l; 1 is sd, smaller accepts more",
                    low=0,
                    high=1,
                    low_excluded=True,
                ),
            ),
        ),
        Method(
            "speccascade",
            "speculative cascade: a deferral rule mixes draft and target",
            "arXiv:2405.19261",
            rule="specbench.methods.speccascade:speccascade",
            parameters=_SPECCASCADE,
        ),
        Method(
            "static",
            "ensemble w p + (1 - w) q with one weight",
            "arXiv:2604.07622",
            rule="specbench.methods.rules:static",
            parameters=(
                Parameter(
                    "weight",
                    0.5,
                    float,
                    "w on the target; 1 is sd, 0 the draft alone",
                    low=0,
                    high=1,
                ),
            ),
        ),
        Method(
            "diversed",
            "ensemble w p + (1 - w) q with a learned weight per token",
            "arXiv:2604.07622",
            rule="specbench.methods.rules:diversed",
            parameters=(
                Parameter(
                    "head",
                    None,
                    str,
                    "a trained head's folder or file, a folder with one per task or with "
                    "acceptance-* folders of them, or bundled, results or untrained (w = 0.5 "
                    "everywhere); repeat or separate by commas; by default bundled, else "
                    "results/heads/<pair>",
                ),
            ),
        ),
    )
}
"""Every method by name, in the order tables and figures show them."""


def get_method(name: str) -> Method:
    """Return the method of that name.

    Raises:
        UsageError: there is none; the message suggests the nearest name.
    """
    if name in METHODS:
        return METHODS[name]
    raise UsageError(unknown("method", name, METHODS))
