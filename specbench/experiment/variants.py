"""Which methods run with which parameters: all those chosen, or a grid of one beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from specbench.errors import UsageError
from specbench.methods.method import Method, Parameter
from specbench.methods.registry import AUTOREGRESSIVE, METHODS, get_method
from specbench.words import unknown

STATIC = "static"
ANCHORS = (AUTOREGRESSIVE, "sd", "diversed")  # what a sweep is compared with
NUMBERS = tuple(
    dict.fromkeys(p.name for m in METHODS.values() for p in m.parameters if p.kind is float)
)
"""Names of the parameters that can be swept."""

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
    _refuse_strays(methods, given)
    return [variant for method in methods for variant in _variants(method, given)]


def swept_methods(names: Collection[str], parameter: str) -> list[str]:
    """Return the methods that a sweep of a parameter is about.

    Args:
        names: Methods chosen.
        parameter: Name of the parameter.

    Returns:
        Those of them that take it, or else all that do.

    Raises:
        UsageError: There is no such number.
    """
    if parameter not in NUMBERS:
        raise UsageError(unknown("parameter", parameter, NUMBERS))
    takers = [method.name for method in METHODS.values() if _takes(method, parameter)]
    return [name for name in takers if name in names] or takers


def usual_values(method: str, parameter: str, given: Mapping[str, Any]) -> Sequence[float]:
    """Return the values that a sweep of a method's parameter goes through by default.

    Raises:
        UsageError: As ``method_variants``.
    """
    known = get_method(method)
    _, resolved = _variants(known, given)[0]

    def holds(entry: Parameter) -> bool:
        return entry.when is None or resolved[entry.when[0]] == entry.when[1]

    return next(p.grid for p in known.parameters if p.name == parameter and holds(p))


def sweep_variants(
    names: Iterable[str],
    given: Mapping[str, Any],
    parameter: str,
    values: Iterable[float],
    swept: Sequence[str],
) -> list[Variant]:
    """Return the methods beside a sweep, and each swept method at each value of a parameter.

    Args:
        names: Methods; those swept may be among them.
        given: Parameters by name, as for ``method_variants``.
        parameter: The one swept.
        values: Its values.
        swept: Methods that take it.

    Raises:
        UsageError: As ``method_variants``.
    """
    beside = [get_method(name) for name in names if name not in swept]
    methods = [get_method(name) for name in swept]
    _refuse_strays([*beside, *methods], given)
    settings = [{**given, parameter: value} for value in dict.fromkeys(values)]
    anchors = [variant for method in beside for variant in _variants(method, given)]
    grid = [v for method in methods for each in settings for v in _variants(method, each)]
    return anchors + grid


def _variants(method: Method, given: Mapping[str, Any]) -> list[Variant]:
    """One method with what it takes of the parameters given, once for each head."""
    mine = {name: value for name, value in given.items() if _takes(method, name)}
    heads = mine.get("head")
    each = [{**mine, "head": head} for head in heads] if heads else [mine]
    return [(method.name, method.resolve(values)) for values in each]


def _refuse_strays(methods: Sequence[Method], given: Mapping[str, Any]) -> None:
    """Refuse parameters that none of some methods takes."""
    for name, value in given.items():
        if value is not None and not any(_takes(method, name) for method in methods):
            owners = [method.name for method in METHODS.values() if _takes(method, name)]
            raise UsageError(
                f"--{name} is a parameter of {' and '.join(owners)}, not of any method chosen: "
                "add one with --method, or leave the parameter out"
            )


def _takes(method: Method, parameter: str) -> bool:
    return any(known.name == parameter for known in method.parameters)
