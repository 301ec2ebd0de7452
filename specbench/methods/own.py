"""Rules of the user's own and their parameters; ``heads.bind`` finds mistakes before a run.

A rule is a function ``(positions, x, *, parameters) -> Verdict`` in a file. Parameters with
defaults need nothing else; the decorator ``rule`` adds bounds, help and the exact
law.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from specbench.errors import UsageError, require
from specbench.methods.method import HEAD, RESERVED, Method, Parameter, rule
from specbench.plugins import Plugin, declared, place

_KINDS = (int, float, bool, str)


def own_method(plugin: Plugin) -> Method:
    """Return a rule of the user's own as a method; a parameter ``head`` is a trained head."""
    method = declared(plugin.function, Method) or declared(rule()(plugin.function), Method)
    assert method is not None
    location = place(plugin.name, plugin.function)
    require(method.control is None, f"{location}: leave control out of @rule, and give --drafting")
    return replace(
        method,
        name=plugin.name,
        source=plugin.source,
        rule=plugin.function,
        parameters=tuple(_parameters(plugin, method.parameters)),
        digest=plugin.digest,
    )


def _parameters(plugin: Plugin, described: tuple[Parameter, ...]) -> Iterator[Parameter]:
    signature = inspect.signature(plugin.function)
    plain = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    first = [p for p in plain[:2] if p.kind != p.KEYWORD_ONLY]
    location = place(plugin.name, plugin.function)
    if len(first) < 2 or len(plain) < len(signature.parameters):
        raise UsageError(
            f"{location} must take the positions, the drafted tokens and named parameters, such as "
            f"(at, x, *, keep=2), not {signature}"
        )
    names = [p.name for p in plain[2:]]
    for parameter in described:
        if parameter.name not in names:
            raise UsageError(
                f"{location} has no argument `{parameter.name}`, which @rule describes: add it"
            )
    for name in RESERVED:
        if name in names:
            raise UsageError(f"{location}: `{name}` means something else in runs: rename it")
    by_name = {parameter.name: parameter for parameter in described}
    for argument in plain[2:]:
        yield _parameter(plugin, argument, by_name.get(argument.name))


def _parameter(
    plugin: Plugin, argument: inspect.Parameter, described: Parameter | None
) -> Parameter:
    """Return a parameter whose kind is that of its annotation, if it has one."""
    name, location = argument.name, place(plugin.name, plugin.function)
    if described is None and name == HEAD.name:
        return HEAD
    hint: Any = argument.annotation
    if isinstance(hint, str):  # with postponed evaluation
        with suppress(Exception):  # a name that only a type checker knows, for example
            hint = eval(hint, inspect.unwrap(plugin.function).__globals__)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    kind: Any = type(choices[0]) if choices else hint
    if hint is argument.empty:
        kind = described.kind if described else type(argument.default)
    if kind not in _KINDS or (described is None and argument.default is argument.empty):
        raise UsageError(
            f"{location} takes `{name}` without a default that is a number or a text: write "
            f"{name}=0.5, or describe it with @rule"
        )
    plain = described or Parameter(name, argument.default, f"of {plugin.name}", kind)
    parameter = replace(plain, kind=kind, choices=choices or plain.choices)
    # A description that states no kind has float.
    if plain.kind not in (kind, float) or (choices and plain.choices not in ((), choices)):
        raise UsageError(
            f"{location}: @rule describes `{name}` as {plain.permitted}, but its annotation means "
            f"{parameter.permitted}: change one of them"
        )
    try:
        value = parameter.default
        if parameter.check(value) != value or isinstance(value, bool) != (kind is bool):
            raise UsageError(f"{name} cannot be {value!r}: give {parameter.permitted}")
    except UsageError as error:
        raise UsageError(f"{location}: {error}") from error
    return replace(parameter, default=parameter.check(parameter.default))
