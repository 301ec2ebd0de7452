"""Groups of options: a command takes a dataclass, its user types an option per field."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Put the fields of its groups in the place of a command's parameters that are groups.

    Typer reads a command's options from its signature, so the function returned has one parameter
    per option; what is typed is gathered into the groups again before ``function`` is called.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += _options(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**typed: Any) -> None:
        for name, group in groups.items():
            typed[name] = group(**{field.name: typed.pop(field.name) for field in fields(group)})
        function(**typed)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def changed(*groups: Any) -> list[str]:
    """Return the options of some groups that are not at their defaults, as they are typed."""
    return [
        f"--{field.name.replace('_', '-')}"
        for group in groups
        for field in fields(group)
        if getattr(group, field.name) != field.default
    ]


def retyped(*groups: Any) -> list[str]:
    """Return the same options with their values, as the parts of another command line."""
    parts: list[str] = []
    for group in groups:
        for field in fields(group):
            value = getattr(group, field.name)
            if value == field.default:
                continue
            name = f"--{field.name.replace('_', '-')}"
            for each in value if isinstance(value, list) else [value]:
                parts += [name] if each is True else [name, str(each)]
    return parts


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
