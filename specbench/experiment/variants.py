"""Combinations of methods and parameter values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from specbench.errors import UsageError, require
from specbench.methods.method import INSIDE, Method
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS, METHODS, get_method
from specbench.plugins import require_distinct
from specbench.words import unknown

STATIC = "static"
ANCHORS = (AUTOREGRESSIVE, "sd", "diversed")  # baselines of a sweep
_ALL = [parameter for method in METHODS.values() for parameter in method.parameters]
NUMBERS = tuple(dict.fromkeys(p.name for p in _ALL if p.kind is float))  # can be swept

Variant = tuple[str, dict[str, Any]]  # a method's name and its parameters


def method_variants(
    names: Iterable[str], given: Mapping[str, Any], *, front: bool = False
) -> list[Variant]:
    """Return each method with every combination of its parameter values.

    ``given`` maps a parameter to a value or a list of values, or to None if the user gave none.
    With a static ``front`` beside the methods, ``INSIDE`` may be a parameter of the front alone.

    Raises:
        UsageError: A method is unknown, a value is out of range, or no method has the parameter.
    """
    methods = list({values.name: values for values in map(get_method, names)}.values())
    require_distinct([method.name for method in methods], METHODS, METHODS, "method")
    values = {name: value for name, value in given.items() if value is not None}
    taken = [parameter.name for method in methods for parameter in method.parameters]
    for name in values:
        if any(method.takes(name) for method in methods) or (front and name == INSIDE):
            continue
        require(name != INSIDE, "--inside confines rules that are not exact: name one, or omit it")
        owners = [method.name for method in METHODS.values() if method.takes(name)]
        if not owners:
            raise UsageError(unknown("parameter", name, dict.fromkeys(taken)))
        raise UsageError(
            f"{name} is a parameter of {' and '.join(owners)}, not of the chosen methods: "
            "add one with --method, or omit the parameter"
        )
    return [variant for method in methods for variant in _variants(method, values)]


def with_baselines(variants: Sequence[Variant]) -> list[Variant]:
    """Return methods with no speculation before them: it says whether their drafts pay."""
    methods = {method for method, _ in variants}
    alone = [] if AUTOREGRESSIVE in methods else method_variants([AUTOREGRESSIVE], {})
    return [*alone, *variants]


def with_control(variants: Sequence[Variant]) -> list[Variant]:
    """Return methods with a control for a lower temperature if any of them relaxes the target.

    The control is SD at half of the temperature. A metric that rewards likely texts also rewards
    rules that prefer likely tokens, and a lower temperature does the same without a rule.
    """
    relaxed = {
        method
        for method, values in variants
        if not (method == STATIC or get_method(method).emits_target(values))
    }
    if not relaxed or relaxed.intersection(CONTROLS):
        return list(variants)
    return [*variants, *method_variants(["cooled"], {"both_temperature": 0.5})]


def swept_methods(names: Collection[str], parameter: str) -> list[str]:
    """Return the given methods that have a numeric parameter; if there are none, all such methods.

    Raises:
        UsageError: A method is unknown, or none has the parameter.
    """
    custom = [name for name in names if name not in METHODS]
    takers = [name for name in [*METHODS, *custom] if _is_number(get_method(name), parameter)]
    if not takers:
        custom_parameters = [
            p.name for name in custom for p in get_method(name).parameters if p.kind is not str
        ]
        raise UsageError(unknown("parameter", parameter, [*NUMBERS, *custom_parameters]))
    return [name for name in takers if name in names] or takers


def usual_values(method: str, parameter: str, given: Mapping[str, Any]) -> Sequence[float]:
    """Return the default values for a sweep of a method's parameter.

    Raises:
        UsageError: The parameter of an own rule has no grid.
    """
    definition = get_method(method)
    _, resolved = _variants(definition, given)[0]
    grid = next(
        p.grid
        for p in definition.parameters
        if p.name == parameter and (p.when is None or resolved[p.when[0]] == p.when[1])
    )
    require(len(grid) > 0, f"{parameter} of {method} has no usual values: give some with --values")
    return grid


def _variants(method: Method, given: Mapping[str, Any]) -> list[Variant]:
    """Return one method with every combination of its parameter values."""
    lists = {
        name: dict.fromkeys(value if isinstance(value, list | tuple) else [value])
        for name, value in given.items()
        if value is not None and method.takes(name)
    }
    chosen_variants = []
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        heads = {"head": chosen.pop("head")} if "head" in chosen else {}
        chosen_variants.append((method.name, method.resolve(chosen) | heads))
    return chosen_variants


def _is_number(method: Method, parameter: str) -> bool:
    return any(p.name == parameter and p.kind is not str for p in method.parameters)
