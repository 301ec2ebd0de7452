"""Validated models of files and options; the model defines types, bounds and names once.

A validator of a model or field raises ``ValueError`` with the predicate for the key, such as "must
be a part of `template`". A validator of a whole file or command raises a complete sentence.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from pydantic.types import Strict

from specbench.errors import UsageError, meant, none_of, shown

Text = Annotated[str, StringConstraints(min_length=1)]
"""A non-empty string."""
Texts = Annotated[tuple[Text, ...], Strict(False)]
"""Non-empty strings; a list in files."""

T = TypeVar("T")
Place = tuple[str | int, ...]
UNKNOWN_KEY = "extra_forbidden"  # pydantic's type of this error


class StrictModel(BaseModel):
    """An immutable model with strict types and no additional fields.

    An integer is accepted as a float; ``true`` is not an integer, and ``nan`` is not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Problem(NamedTuple):
    """A mistake: its dotted key (empty for the whole input) and what is wrong."""

    key: str
    message: str


def quoted(key: str) -> str:
    """Return a key as shown in messages."""
    return f"`{shown(key)}`"


def validated(
    kind: type[T], values: object, where: str = "", name: Callable[[str], str] = quoted
) -> T:
    """Return a model, or a container of models, built from plain values.

    ``where`` is the file of the values; ``name`` formats a dotted key.

    Raises:
        UsageError: The first mistake in one sentence: file, key, and allowed values; for an unknown
            key or choice it suggests the nearest known one.
    """
    try:
        return _made(kind, values)
    except ValidationError as error:
        raise refusal(kind, error, where, name) from error


def refusal(
    kind: Any, error: ValidationError, where: str = "", name: Callable[[str], str] = quoted
) -> UsageError:
    """Convert a pydantic error to the error that ``validated`` raises."""
    # A mistyped key explains why another key is missing, so unknown keys come first.
    errors = sorted(error.errors(include_url=False), key=lambda each: each["type"] != UNKNOWN_KEY)
    first, *further = [_problem(kind, entry) for entry in errors]
    location = (f"{where}: " if where else "") + (f"{name(first.key)} " if first.key else "")
    problems = "problem" if len(further) == 1 else "problems"
    more = f" (and {len(further)} more {problems})" if further else ""
    return UsageError(f"{location}{first.message}{more}")


def load_toml(path: Path, noun: str = "file") -> dict[str, Any]:
    """Return the values of a TOML file, or raise ``UsageError``."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the {noun} {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not valid TOML: nested too deeply") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(f"{path}: not valid TOML: {' '.join(str(error).split())}") from error


def read_toml(path: Path, kind: type[T], noun: str = "file") -> T:
    """Read a TOML file as a model."""
    return validated(kind, load_toml(path, noun), str(path))


def _made(kind: type[T], values: object) -> T:
    value: T
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        # This bypasses the model's __init__, which may refer to fields as options.
        new = kind.__new__(kind)
        value = kind.__pydantic_validator__.validate_python(values, self_instance=new)
    else:
        value = TypeAdapter(kind).validate_python(values)
    return value


# Expected values by the type of the pydantic error, formatted with its context.
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


def _problem(kind: Any, error: Any) -> Problem:
    location: Place = tuple(step for step in error["loc"] if step != "[key]")
    key, value, context = _dotted(location), error["input"], error.get("ctx", {})
    match error["type"]:
        case error_type if error_type == UNKNOWN_KEY:
            keys = [_dotted((*location[:-1], name)) for name in _keys(kind, location[:-1])]
            problem = f"is unknown; {meant(key, keys)}"
        case "missing":
            problem = "is missing; add it"
        case "string_too_short" | "too_short":
            problem = "is empty; fill it in"
        case "literal_error":
            problem = none_of(value, re.findall(r"'([^']*)'", context["expected"]))
        case "value_error" | "assertion_error":
            problem = str(context["error"])
        case other:
            expected = _WANTED.get(other, "").format(**context)
            problem = f"must be {expected}, not {shown(repr(value))}" if expected else error["msg"]
    return Problem(key, " ".join(problem.split()))


def _dotted(place: Sequence[str | int]) -> str:
    """Format a location as ``table.key`` or ``list[0]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


def _keys(kind: Any, place: Place) -> Iterator[str]:
    """Yield the keys allowed in the table at a location."""
    for step in place:
        fields = [model.model_fields for model in _models(kind)]
        # A key or index of a container of models leads to the same models.
        kind = next((table[str(step)].annotation for table in fields if step in table), kind)
    for model in _models(kind):
        yield from model.model_fields


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models mentioned in a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from _models(inner)
