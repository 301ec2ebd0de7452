"""Parameters of the rules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any

import typer

from specbench.cli.choices import choose_heads
from specbench.cli.options.common import completer
from specbench.errors import UsageError
from specbench.methods.registry import METHODS


def _rule_option(name: str) -> Any:
    """An option for a parameter of rules, with the help and the default of the registry."""
    entries = [(m.name, p) for m in METHODS.values() for p in m.parameters if p.name == name]
    owners = dict.fromkeys(method for method, _ in entries)
    texts = dict.fromkeys(entry.help for _, entry in entries)
    several = f"{name}; range and default depend on the rule, see `specbench list methods`"
    (_, first), *_ = entries
    reading: Any = {"parser": partial(_one_number, name), "metavar": "FLOAT"}
    return typer.Option(
        f"--{name.replace('_', '-')}",
        help=f"{', '.join(owners)}: {first.help if len(texts) == 1 else several}.",
        show_default=False if first.default is None else f"{first.default}",
        autocompletion=completer(lambda: first.choices),
        rich_help_panel="Parameters of methods",
        **(reading if first.kind is float else {}),
    )


def _one_number(name: str, text: str) -> float:
    """Read a parameter's value; where several were typed, say which command takes several."""
    try:
        return float(text)
    except ValueError as error:
        sweep = (
            "sweep-weights --weights" if name == "weight" else f"sweep --parameter {name} --values"
        )
        several = f": for several, `specbench {sweep} {text}`" if "," in text else ""
        raise UsageError(f"--{name} takes one number, not {text!r}{several}") from error


Weight = Annotated[float | None, _rule_option("weight")]

Lenience = Annotated[float | None, _rule_option("lenience")]

Rule = Annotated[str | None, _rule_option("rule")]

Alpha = Annotated[float | None, _rule_option("alpha")]

Budget = Annotated[float | None, _rule_option("budget")]

Epsilon = Annotated[float | None, _rule_option("epsilon")]

Delta = Annotated[float | None, _rule_option("delta")]

Divergence = Annotated[float | None, _rule_option("divergence")]

TargetTemperature = Annotated[float | None, _rule_option("target_temperature")]

TargetMinP = Annotated[float | None, _rule_option("target_min_p")]

Cost = Annotated[float | None, _rule_option("cost")]

Gate = Annotated[float | None, _rule_option("gate")]

Head = Annotated[list[str] | None, _rule_option("head")]


@dataclass(frozen=True)
class Rules:
    """Parameters of the rules, but for the weight, which ``sweep-weights`` goes through."""

    lenience: Lenience = None
    rule: Rule = None
    alpha: Alpha = None
    budget: Budget = None
    epsilon: Epsilon = None
    delta: Delta = None
    divergence: Divergence = None
    target_temperature: TargetTemperature = None
    target_min_p: TargetMinP = None
    gate: Gate = None
    cost: Cost = None
    head: Head = None

    def given(self) -> dict[str, Any]:
        """Return the parameters by name, as typed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"head": choose_heads(self.head)}
