"""Command-line options, generated from the fields of option models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from specbench.config import Options
from specbench.errors import UsageError
from specbench.words import unknown

Number = TypeVar("Number", int, float)


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameters that are groups by an option for each of their fields.

    A group is a model of options, a dataclass of groups, or ``Annotated[dict[str, Any], Model]``
    for what the user typed of a model and nothing else. A field that the command has a parameter
    of its own for is left out. Typer reads options from a signature, so the function returned has
    a parameter per option.
    """
    signature = inspect.signature(function, eval_str=True).parameters
    parameters = [_parameter("context", typer.Context)]
    groups: dict[str, Any] = {}
    for name, parameter in signature.items():
        if models := list(_models(parameter.annotation)):
            groups[name] = parameter.annotation
            only_typed = get_origin(parameter.annotation) is Annotated
            options = [option for model in models for option in _options(model, only_typed)]
            parameters += [option for option in options if option.name not in signature]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(context: typer.Context, **values: Any) -> None:
        typed = {
            name: value
            for name, value in values.items()
            if getattr(context.get_parameter_source(name), "name", "") != "DEFAULT"
        }
        own = {name: value for name, value in values.items() if name in signature}
        function(**own, **{name: _gather(group, typed) for name, group in groups.items()})

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def flag(group: type[Options], name: str, **changes: Any) -> Any:
    """Return a field of a group as an option, with some arguments of ``typer.Option`` changed."""
    field = group.model_fields[name]
    extra: Any = field.json_schema_extra or {}
    kind, default = _plain(field.annotation), field.default
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    complete = extra.get("complete") or (choices and (lambda: choices))
    shown: Any = extra.get("shown")
    if shown is None:
        shown = numbers(default) if isinstance(default, list) else default is not None
    about: dict[str, Any] = {
        "help": field.description,
        "metavar": extra.get("metavar"),
        "show_default": shown,
        "autocompletion": completer(complete) if complete else None,
        "rich_help_panel": group.panel_of(name),
    }
    return typer.Option(*group.flags(name), **(about | changes))


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes the last name of a comma list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


def one_of(option: str, known: Iterable[str], help: str = "", **more: Any) -> Any:
    """Return an option that takes one of some names; ``more`` is as for ``typer.Option``."""

    def parse(name: str) -> str:
        if name not in known:
            raise UsageError(unknown(option, name, known))
        return name

    about: dict[str, Any] = {"metavar": option.removeprefix("--").upper(), **more}
    text = f"One of {', '.join(known)}. {help}".strip()
    return typer.Option(
        option, help=text, parser=parse, autocompletion=completer(lambda: known), **about
    )


def split(option: str, values: Sequence[str]) -> list[str]:
    """Return the names of comma lists, each once; refuse lists without a name."""
    parts = [part.strip() for value in values for part in value.split(",")]
    names = list(dict.fromkeys(filter(None, parts)))
    # An unset variable in a script must not silently mean everything.
    if values and not names:
        raise UsageError(f"{option} is empty: give at least one value or leave the option out")
    return names


def parse_numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers of a comma list, each once; refuse anything else."""
    try:
        return list(dict.fromkeys(kind(part) for part in split(option, [text])))
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{option} cannot be {text!r}: give {what} with commas between") from error


def numbers(values: Iterable[float]) -> str:
    """Write numbers as a comma list."""
    return ",".join(f"{value:g}" for value in values)


def _models(group: Any) -> Iterator[type[Options]]:
    """Yield the models that a group consists of; nothing for what is no group."""
    if get_origin(group) is Annotated and isinstance(group.__metadata__[0], type):
        yield group.__metadata__[0]
    elif is_dataclass(group):
        for hint in get_type_hints(group).values():
            yield from _models(hint)
    elif isinstance(group, type) and issubclass(group, Options):
        yield group


def _gather(group: Any, typed: Mapping[str, Any]) -> Any:
    """Return a group with the values that were typed."""
    if is_dataclass(group):
        hints = get_type_hints(group).items()
        parts = {name: _gather(hint, typed) for name, hint in hints}
        return group(**parts)  # type: ignore[operator]
    (model,) = _models(group)
    values = {n: _read(model, n, typed[n]) for n in model.model_fields if n in typed}
    return values if group is not model else model(**values)


def _read(group: type[Options], name: str, value: Any) -> Any:
    """Return a field's value as typed; comma lists become lists."""
    item = _item(_plain(group.model_fields[name].annotation))
    if item is None or item is Path:
        return value
    option = group.flags(name)[0]
    return split(option, value) if item is str else parse_numbers(option, ",".join(value), item)


def _options(group: type[Options], only_typed: bool) -> Iterator[inspect.Parameter]:
    for name in group.ordered_fields():
        field = group.model_fields[name]
        kind = _plain(field.annotation)
        item = _item(kind)
        if item is not None:  # typed as a comma list, often, or both
            kind, default = list[Path] if item is Path else list[str], None
        else:
            kind = str if get_origin(kind) is Literal else kind
            default = inspect.Parameter.empty if field.is_required() else field.default
        changes = {"show_default": False} if only_typed else {}
        default = None if only_typed else default
        hint = kind if default is not None else kind | None
        yield _parameter(name, Annotated[hint, flag(group, name, **changes)], default)


def _parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _plain(hint: Any) -> Any:
    """Return a type without None."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(hint) else hint


def _item(kind: Any) -> Any:
    """Return the type of a list's items; None for any other type."""
    if get_origin(kind) is not list:
        return None
    (item,) = get_args(kind)
    return get_args(item)[0] if get_origin(item) is Annotated else item
