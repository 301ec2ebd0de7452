"""Reading the file of a suite; the first thing wrong is told with its place."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from specbench.engine.settings import Loading
from specbench.errors import UsageError
from specbench.suites.suite import DRAFTS, EVERY, TUNED, Entry, Suite, Training
from specbench.words import unknown

T = TypeVar("T")


def find_suite(name: str) -> Path:
    """Return the file of a suite: one that comes with specbench by its name, else a path.

    Raises:
        UsageError: There is none.
    """
    known = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
    path = known.get(name, Path(name))
    if not path.is_file():
        raise UsageError(f"there is no suite {name}: give a TOML file, or {' or '.join(known)}")
    return path


def read_suite(path: Path) -> Suite:
    """Read a suite.

    Raises:
        UsageError: The file cannot be read or is no suite; the message says what is wrong where.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the suite {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    try:
        return _suite(path.stem, values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


_TABLES: dict[str, Any] = {
    "about": str,
    "train": list[dict[str, Any]],
    "entry": list[dict[str, Any]],
    "loading": dict[str, Any],
    "assumed_tokens_per_second": dict[str, float],
}


def _suite(name: str, values: Mapping[str, Any]) -> Suite:
    for key, value in values.items():
        if key not in _TABLES:
            raise UsageError(unknown("key", key, _TABLES))
        _require(value, _TABLES[key], key)
    trainings = [_made(Training, each, "train") for each in values.get("train", ())]
    entries = [_made(Entry, each, "entry") for each in values.get("entry", ())]
    if not entries:
        raise UsageError("holds no [[entry]], so there is nothing to measure")
    for each, number in Counter(entry.name for entry in entries).items():
        if number > 1:
            raise UsageError(f"two entries are called {each}: give one another name")
    suite = Suite(
        name,
        tuple(trainings),
        tuple(entries),
        values.get("about", ""),
        _made(Loading, values.get("loading", {}), "loading"),
        values.get("assumed_tokens_per_second", {}),
    )
    _check_trained(suite)
    return suite


def _check_trained(suite: Suite) -> None:
    """Refuse entries that need what no training makes, and what two would make."""
    for folder, number in Counter(job.folder(Path()) for job in suite.jobs()).items():
        if number > 1:
            raise UsageError(f"{folder} would be trained twice: leave it out of one [[train]]")
    for unit in suite.units():
        if unit.entry.drafts == TUNED and not any(
            job.training.what == DRAFTS for job in suite.needs(unit)
        ):
            raise UsageError(
                f"{unit.entry.name} needs the draft of {unit.pair} fine-tuned on {unit.task}: add "
                f'it to a [[train]] with what = "{DRAFTS}"'
            )
        if unit.entry.heads == EVERY and not suite.needs(unit):
            raise UsageError(
                f"{unit.entry.name} needs heads of {unit.pair}: add them to a [[train]]"
            )


def _made(kind: type[T], values: Mapping[str, Any], table: str) -> T:
    """Make a dataclass of a table, checked against its types."""
    hints = get_type_hints(kind)
    named = f"{table} {values['name']}" if isinstance(values.get("name"), str) else table
    for key, value in values.items():
        if key not in hints:
            raise UsageError(f"{named}: {unknown('key', key, hints)}")
        _require(value, hints[key], f"{named}: {key}")
    for each in fields(kind):  # type: ignore[arg-type]
        needed = each.default is MISSING and each.default_factory is MISSING
        if needed and each.name not in values:
            raise UsageError(f"{named}: `{each.name}` is missing")
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from error


def _require(value: Any, wanted: Any, where: str) -> None:
    """Refuse a value that is not of a type."""
    if not _is(value, wanted):
        shown_type = getattr(wanted, "__name__", "") if get_origin(wanted) is None else str(wanted)
        raise UsageError(f"{where} must be of the type {shown_type or wanted}, not {value!r}")


def _is(value: Any, wanted: Any) -> bool:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        return True
    if origin in (UnionType, Union):
        return any(_is(value, each) for each in arguments)
    if origin is list:
        return isinstance(value, list) and all(_is(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(each, arguments[1]) for each in value.values())
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)
