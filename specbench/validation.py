"""Validated models of files and options: types, bounds and names stand once, in the model.

Validators of a model or field raise ``ValueError`` with what follows the key in the sentence, as
"must be a part of `template`"; those of a whole file or command raise a whole sentence.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic.types import Strict

from specbench.errors import UsageError
from specbench.words import meant, none_of, shown

Text = Annotated[str, StringConstraints(min_length=1)]
"""A string that is not empty."""
Texts = Annotated[tuple[Text, ...], Strict(False)]
"""Strings that are not empty; a file gives them as a list."""

T = TypeVar("T")
Place = tuple[str | int, ...]
UNKNOWN_KEY = "extra_forbidden"  # pydantic's type of this error


class Model(BaseModel):
    """Values that cannot change, of exactly the declared types, and no others.

    An integer serves as a float; ``true`` is no integer, and ``nan`` no number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Problem(NamedTuple):
    """A mistake: the dotted key it is at, empty for the whole, and what is wrong there."""

    key: str
    what: str


def quoted(key: str) -> str:
    """Return a key of a file as messages show it."""
    return f"`{shown(key)}`"


def validated(
    kind: type[T], values: object, where: str = "", name: Callable[[str], str] = quoted
) -> T:
    """Return a model, or a container of models, made of plain values.

    ``where`` is the file they are from; ``name`` writes a dotted key.

    Raises:
        UsageError: One sentence with the first mistake: file, key, and what is allowed there; an
            unknown key or choice comes with the nearest known one.
    """
    try:
        return _made(kind, values)
    except ValidationError as error:
        raise refusal(kind, error, where, name) from error


def refusal(
    kind: Any, error: ValidationError, where: str = "", name: Callable[[str], str] = quoted
) -> UsageError:
    """Return what ``validated`` raises for an error of pydantic's."""
    first, *others = _problems(kind, error)
    place = f"{where}: " * bool(where) + f"{name(first.key)} " * bool(first.key)
    more = f" (and {len(others)} more problem{'s' * (len(others) > 1)})" if others else ""
    return UsageError(f"{place}{first.what}{more}")


def problems(kind: type[Any], values: object) -> list[Problem]:
    """Return every mistake in plain values that should make a model."""
    try:
        _made(kind, values)
    except ValidationError as error:
        return _problems(kind, error)
    return []


def load_toml(path: Path, what: str = "file") -> dict[str, Any]:
    """Return the values of a TOML file, or raise ``UsageError``."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not valid TOML: nested too deeply") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path}: not valid TOML: {' '.join(str(error).split())}") from error


def read_toml(path: Path, kind: type[T], what: str = "file") -> T:
    """Read a TOML file as a model."""
    return validated(kind, load_toml(path, what), str(path))


def _made(kind: type[T], values: object) -> T:
    made: T
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        # Not through the model's own __init__, which may call its fields options.
        new = kind.__new__(kind)
        made = kind.__pydantic_validator__.validate_python(values, self_instance=new)
    else:
        made = TypeAdapter(kind).validate_python(values)
    return made


# What must be, by the type of pydantic's error and its context.
_WANTED = {
    "string_type": "a string",
    "path_type": "a path",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "mapping_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "greater_than": "above {gt:.12g}",
    "greater_than_equal": "{ge:.12g} or more",
    "less_than": "below {lt:.12g}",
    "less_than_equal": "{le:.12g} or less",
}


def _problems(kind: Any, error: ValidationError) -> list[Problem]:
    # A mistyped key explains why another is missing, so it is told first.
    found = sorted(error.errors(include_url=False), key=lambda each: each["type"] != UNKNOWN_KEY)
    return [_problem(kind, each) for each in found]


def _problem(kind: Any, error: Any) -> Problem:
    place: Place = tuple(step for step in error["loc"] if step != "[key]")
    key, value, context = _dotted(place), error["input"], error.get("ctx", {})
    match error["type"]:
        case error_type if error_type == UNKNOWN_KEY:
            keys = [_dotted((*place[:-1], known)) for known in _keys(kind, place[:-1])]
            what = f"is unknown; {meant(key, keys)}"
        case "missing":
            what = "is missing; add it"
        case "string_too_short" | "too_short":
            what = "is empty; fill it in"
        case "literal_error":
            what = none_of(value, re.findall(r"'([^']*)'", context["expected"]))
        case "value_error" | "assertion_error":
            what = str(context["error"])
        case other:
            wanted = _WANTED.get(other, "").format(**context)
            what = f"must be {wanted}, not {shown(repr(value))}" if wanted else error["msg"]
    return Problem(key, " ".join(what.split()))


def _dotted(place: Sequence[str | int]) -> str:
    """Write a place as ``table.key`` or ``list[0]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


def _keys(kind: Any, place: Place) -> Iterator[str]:
    """Yield the keys that the table at a place may hold."""
    for step in place:
        fields = [model.model_fields for model in _models(kind)]
        # A name or number within a container of models leads to the same models.
        kind = next((known[str(step)].annotation for known in fields if step in known), kind)
    for model in _models(kind):
        yield from model.model_fields


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type names."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from _models(inner)
