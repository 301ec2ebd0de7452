"""Which methods run with which parameters: all those chosen, or a grid of weights beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specbench.errors import UsageError
from specbench.methods.registry import METHODS, Method, get_method

AUTOREGRESSIVE = "autoregressive"
ANCHORS = (AUTOREGRESSIVE, "sd", "diversed")  # what a weight sweep is compared with
WEIGHTS = tuple(step / 10 for step in range(11))

Variant = tuple[str, dict[str, Any]]  # a method's name and its parameters


def method_variants(names: Iterable[str], given: Mapping[str, Any]) -> list[Variant]:
    """Return each method once, with the parameters given for it.

    Args:
        names: Methods.
        given: Parameters by name, None where the user gave none. A method takes what it knows, and
            comes once for each of several heads.

    Raises:
        UsageError: An unknown method, a value out of range, or a parameter that none of the
            methods takes.
    """
    methods = [get_method(name) for name in names]
    for name, value in given.items():
        if value is not None and not any(_takes(method, name) for method in methods):
            owner = next(method.name for method in METHODS.values() if _takes(method, name))
            raise UsageError(
                f"--{name} is a parameter of {owner}, which is not among the methods: "
                "add it with --method, or leave the parameter out"
            )
    return [
        (method.name, method.resolve({n: v for n, v in values.items() if _takes(method, n)}))
        for method in methods
        for values in _one_head_each(method, given)
    ]


def weight_variants(
    names: Iterable[str], given: Mapping[str, Any], weights: Iterable[float]
) -> list[Variant]:
    """Return the methods beside a sweep, and ``static`` at each weight.

    Raises:
        UsageError: As ``method_variants``, or no weight at all.
    """
    static = get_method("static")
    grid = [(static.name, static.resolve({"weight": weight})) for weight in dict.fromkeys(weights)]
    if not grid:
        raise UsageError("--weights needs at least one number from 0 to 1")
    return method_variants((n for n in names if n != static.name), given) + grid


def _one_head_each(method: Method, given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    heads = given.get("head")
    if not heads or not _takes(method, "head"):
        return [given]
    return [{**given, "head": head} for head in heads]


def _takes(method: Method, parameter: str) -> bool:
    return any(known.name == parameter for known in method.parameters)
