"""Parameters of the rules."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from specbench.cli.choices import choose_heads
from specbench.cli.options.common import completer
from specbench.methods.registry import METHODS


def _rule_option(method: str, name: str) -> Any:
    """An option for a rule's parameter, with the help and the default of the registry."""
    entries = [known for known in METHODS[method].parameters if known.name == name]
    first = entries[0]
    several = "; range and default depend on the rule, see `specbench list methods`"
    return typer.Option(
        f"--{name}",
        help=f"{method}: {first.help if len(entries) == 1 else name + several}.",
        show_default=False if first.default is None else f"{first.default}",
        autocompletion=completer(lambda: first.choices),
        rich_help_panel="Parameters of methods",
    )


Weight = Annotated[float | None, _rule_option("static", "weight")]

Lenience = Annotated[float | None, _rule_option("lossy", "lenience")]

Rule = Annotated[str | None, _rule_option("speccascade", "rule")]

Alpha = Annotated[float | None, _rule_option("speccascade", "alpha")]

Head = Annotated[list[str] | None, _rule_option("diversed", "head")]


@dataclass(frozen=True)
class Rules:
    """Parameters of the rules, but for the weight, which ``sweep-weights`` goes through."""

    lenience: Lenience = None
    rule: Rule = None
    alpha: Alpha = None
    head: Head = None

    def given(self) -> dict[str, Any]:
        """Return the parameters by name, as typed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"head": choose_heads(self.head)}
