"""Options that choose methods and the values of their parameters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar

from specbench.cli.options import ALL, expand_groups
from specbench.config import Options, option
from specbench.decoding.heads.registry import expand_family
from specbench.errors import require
from specbench.experiment.cells import ANCHORS, Variant, method_variants
from specbench.methods.registry import METHODS, PARAMETERS, get_method
from specbench.methods.registry import PAPER as PAPER_METHODS
from specbench.serving.arm import named_values

PAPER = "paper"
PANEL = "Parameters of methods"
METHOD_GROUPS = {PAPER: PAPER_METHODS, ALL: tuple(METHODS)}


def _methods(purpose: str, default: str) -> Any:
    return option(
        None,
        f"{purpose}, see `specbench list methods`: names separated by commas, paper (six), all, "
        "FILE.py:FUNCTION for a rule of your own, or with values, as static:weight=0.5.",
        flags=("--method", "-m"),
        metavar="NAME",
        shown=default,
        complete=lambda: [*METHODS, *METHOD_GROUPS],
        repeats=True,
    )


class Methods(Options):
    """Which methods to run, and the values of their parameters."""

    default: ClassVar[Iterable[str]] = PAPER_METHODS

    method: list[str] | None = _methods("Methods to measure", PAPER)

    set_values: list[str] | None = option(
        None,
        "Values of parameters, all to be measured, as in weight=0.5,0.9.",
        flags=("--set",),
        metavar="NAME=VALUE[,...]",
        panel=PANEL,
        complete=lambda: [f"{name}=" for name in PARAMETERS],
        repeats=True,
    )
    head: list[str] | None = option(
        None,
        "Heads of diversed, see `specbench list heads`: PAIR/TASK of a bundled one, files, folders "
        "of heads, names of training tasks, bundled, results, or untrained (w = 0.5 everywhere).",
        metavar="HEAD[,...]",
        panel=PANEL,
        shown="bundled, else results",
    )

    @cached_property
    def names(self) -> list[str]:
        """The methods to run."""
        return [*dict.fromkeys(name for name, _ in self._with_values)]

    @cached_property
    def _with_values(self) -> list[tuple[str, dict[str, str]]]:
        """The methods with the values behind their names, as in ``static:weight=0.5,sd``."""
        texts: list[str] = []
        for part in self.method or self.default:
            goes_on = "=" in part and ":" not in part.partition("=")[0]
            texts[len(texts) - goes_on :] = [f"{texts[-1]},{part}" if goes_on and texts else part]
        return [*map(named_values, expand_groups(texts, METHOD_GROUPS))]

    @cached_property
    def optional(self) -> set[str]:
        """The methods that the user did not name explicitly."""
        return set(self.names) - {named_values(text)[0] for text in self.method or ()}

    @property
    def a_a(self) -> bool:
        """Whether sd is named twice, to time it twice (an A/A test)."""
        return (self.method or []).count("sd") > 1

    def parameters(self) -> dict[str, Any]:
        """Return the values that the user gave, by parameter."""
        values: dict[str, Any] = {}
        name = ""
        for text in self.set_values or []:
            before, _, value = text.rpartition("=")
            name = before.strip() or name  # a text without a name repeats the last
            valid = bool(name and value.strip())
            require(valid, f"--set cannot be '{text}': give NAME=VALUE, such as weight=0.5")
            values.setdefault(name, []).append(value.strip())
        if heads := [*values.pop("head", ()), *(self.head or ())]:
            values["head"] = [path for head in heads for path in expand_family(head)]
        return values

    def variants(self) -> list[Variant]:
        """Return each method with every combination of values; those behind a name are its own."""
        shared = method_variants(self.names, self.parameters())  # checks names and values
        variants: list[Variant] = []
        for name, values in self._with_values:
            method = get_method(name)
            of_all = {n: v for n, v in self.parameters().items() if method.takes(n)}
            chosen = method_variants([name], of_all | values) if values else ()
            chosen = chosen or [variant for variant in shared if variant[0] == method.name]
            variants += [variant for variant in chosen if variant not in variants]
        return variants


class MethodsBesideFront(Methods):
    """The methods beside a static front."""

    default = ANCHORS

    method: list[str] | None = _methods(
        "Methods to measure beside the static ensemble", ",".join(ANCHORS)
    )
