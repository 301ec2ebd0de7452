"""Combinations of methods and parameter values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from specbench.errors import UsageError, require, unknown
from specbench.methods.method import INSIDE, Method
from specbench.methods.registry import AUTOREGRESSIVE, CONTROLS, METHODS, get_method
from specbench.plugins import require_distinct

STATIC = "static"
ANCHORS = (AUTOREGRESSIVE, "sd", "diversed")  # measured beside a front

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
