"""Command-line options, generated from the fields of option models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

from specbench.config import Options
from specbench.errors import RunError, UsageError

#: The options that help shows first.
LEADING = (
    *("task", "prompts", "method", "pair", "target", "draft", "drafter", "server", "limit"),
    *("draft_length", "temperature", "max_new_tokens", "minutes", "acceptance", "batch_size"),
    *("engine", "threads", "models", "folder", "allow_code_execution", "output"),
)
MANY = 24  # options; of more, the leading ones and the first panel are shown, and all by --help-all


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a group of options by one option per field.

    A group is an ``Options`` model. ``Annotated[Model, names]`` exposes only the named fields.
    ``Annotated[dict[str, Any], Model]`` receives a dictionary of the options that the user typed.
    If several groups have the same field, the first one defines the option. Typer reads options
    from a signature, so the returned function has one parameter per option.
    """
    signature = inspect.signature(function, eval_str=True).parameters
    groups = {name: group for name, p in signature.items() if (group := _group(p.annotation))}
    options = {"context": _parameter("context", typer.Context)}
    for name, parameter in signature.items():
        plain = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        for option in _options(groups[name]) if name in groups else plain:
            options.setdefault(option.name, option)
    parameters = sorted(options.values(), key=lambda p: [*LEADING, p.name].index(p.name))
    if len(parameters) > MANY:
        for parameter in parameters:
            for flag in getattr(parameter.annotation, "__metadata__", ()):
                leads = parameter.name in LEADING
                flag.hidden = not leads and flag.rich_help_panel not in (None, Options.panel)
        parameters.append(_HELP_ALL)

    def command(context: typer.Context, **values: Any) -> None:
        from specbench.experiment.progress import LINES  # help must not import another room

        LINES.begin()
        typed = {
            name: value
            for name, value in values.items()
            if getattr(context.get_parameter_source(name), "name", "") != "DEFAULT"
        }
        direct = {n: v for n, v in values.items() if n in signature.keys() - groups.keys()}
        try:
            function(**direct, **{name: _made(group, typed) for name, group in groups.items()})
        except SystemExit as error:  # no command ends so; its code could hide what is missing
            raise RunError(f"a library or a file of yours called sys.exit({error})") from error

    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    # Typer would break the lines of a paragraph again where they end here.
    command.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    command.__name__ = function.__name__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _show_all(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
        raise typer.Exit()


def completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a function that completes the last name of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(last)]

    return complete


def split(option: str, values: Sequence[str]) -> list[str]:
    """Return the names of comma-separated lists; refuse empty lists."""
    names = [name for value in values for name in map(str.strip, value.split(",")) if name]
    # An unset variable in a script must not silently mean everything.
    if values and not names:
        raise UsageError(f"{option} is empty: give at least one value or leave the option out")
    return names


class _Group(NamedTuple):
    model: type[Options]
    names: Collection[str]
    raw: bool = False  # pass a dictionary of the typed options instead of the model


def _group(annotation: Any) -> _Group | None:
    """Return a parameter's group of options, or None if it is a plain option or argument."""
    kind: Any = annotation
    marker: Any = None
    if get_origin(annotation) is Annotated:
        kind, marker = annotation.__origin__, annotation.__metadata__[0]
    if isinstance(marker, type) and issubclass(marker, Options):
        return _Group(marker, [n for n in marker.ordered_fields() if marker.about(n)], raw=True)
    if isinstance(kind, type) and issubclass(kind, Options):
        return _Group(kind, kind.ordered_fields() if marker is None else marker)
    return None


def _made(group: _Group, typed: Mapping[str, Any]) -> Any:
    values = {n: _read(group.model, n, typed[n]) for n in group.names if n in typed}
    return values if group.raw else group.model(**values)


def _read(model: type[Options], name: str, value: Any) -> Any:
    """Parse a field's typed value; comma-separated lists become lists."""
    item = _item(_plain(model.model_fields[name].annotation))
    if item is None or item is Path or model.about(name).get("whole"):
        return value
    option, text = model.flags(name)[0], ",".join(value)
    names = split(option, value)
    try:
        parts = [item(part) for part in names]
    except ValueError as error:
        numbers = "whole numbers" if item is int else "numbers"
        raise UsageError(
            f"{option} cannot be {text!r}: give {numbers} separated by commas"
        ) from error
    return parts if model.about(name).get("repeats") else list(dict.fromkeys(parts))


def _options(group: _Group) -> Iterator[inspect.Parameter]:
    for name in group.names:
        field = group.model.model_fields[name]
        kind, default = _plain(field.annotation), field.default
        flag = _flag(group.model, name, kind, None if group.raw else default)
        item = _item(kind)
        if item is not None:  # comma-separated, repeated, or both
            kind, default = list[Path] if item is Path else list[str], None
        elif get_origin(kind) is Literal:
            kind = str
        if group.raw:
            default = None
        elif field.is_required():
            default = inspect.Parameter.empty
        hint = kind if default is not None else kind | None
        yield _parameter(name, Annotated[hint, flag], default)


def _flag(group: type[Options], name: str, kind: Any, default: Any) -> Any:
    about = group.about(name)
    choices = about.get("choices") or (get_args(kind) if get_origin(kind) is Literal else ())
    complete = about.get("complete") or (choices and (lambda: choices))
    printed: Any = about.get("shown")
    if printed is None:
        listed = isinstance(default, list)
        printed = ",".join(f"{value:g}" for value in default) if listed else default is not None
    return typer.Option(
        *group.flags(name),
        help=group.model_fields[name].description,
        metavar=about.get("metavar") or (name.upper() if choices else None),
        show_default=printed,
        autocompletion=completer(complete) if complete else None,
        rich_help_panel=about.get("panel") or group.owner(name).panel,
    )


def _parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


_HELP_ALL = _parameter(
    "help_all",
    Annotated[
        bool,
        typer.Option("--help-all", help="Show all options.", callback=_show_all, is_eager=True),
    ],
    False,
)


def _plain(hint: Any) -> Any:
    """Return a type without None."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if NoneType in get_args(hint) else hint


def _item(kind: Any) -> Any:
    """Return the item type of a list, or None for any other type."""
    if get_origin(kind) is not list:
        return None
    (item,) = get_args(kind)
    return get_args(item)[0] if get_origin(item) is Annotated else item
