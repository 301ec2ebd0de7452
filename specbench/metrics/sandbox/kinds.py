"""Types of plain data: how each is taken apart and made again."""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False  # as in ``typing``, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TYPES = {kind.__name__: kind for kind in vars(builtins).values() if isinstance(kind, type)}

# Immutable values: the arguments that make an equal one.
_ARGUMENTS: dict[str, Callable[[Any], tuple[object, ...]]] = {
    "complex": lambda value: (value.real, value.imag),
    "range": lambda value: (value.start, value.stop, value.step),
    "slice": lambda value: (value.start, value.stop, value.step),
    "dict_keys": lambda value: (tuple(value),),
    "dict_values": lambda value: (tuple(value),),
    "dict_items": lambda value: (tuple(value),),
    "Decimal": lambda value: (str(value),),
    "Fraction": lambda value: (value.numerator, value.denominator),
    "date": lambda value: (value.year, value.month, value.day),
    "time": lambda value: (*_clock(value), value.tzinfo),
    "datetime": lambda value: (value.year, value.month, value.day, *_clock(value), value.tzinfo),
    "timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "timezone": lambda value: (value.utcoffset(None),),
}
_MAKERS: dict[str, Callable[[Any], object]] = {
    "dict_keys": lambda keys: dict.fromkeys(keys).keys(),
    "dict_values": lambda values: dict(enumerate(values)).values(),
    "dict_items": lambda items: dict(items).items(),
}
# Mutable containers, and what an empty one needs.
_NEEDS: dict[str, Callable[[Any], tuple[object, ...]]] = {
    **dict.fromkeys(("list", "set", "dict", "bytearray", "OrderedDict", "Counter"), lambda _: ()),
    "deque": lambda value: ((), value.maxlen),
    "defaultdict": lambda value: (value.default_factory,),
}
_MODULES = {
    **dict.fromkeys(("deque", "defaultdict", "OrderedDict", "Counter"), "collections"),
    **dict.fromkeys(("date", "time", "datetime", "timedelta", "timezone"), "datetime"),
    "Decimal": "decimal",
    "Fraction": "fractions",
}
_NAMES = {
    **{TYPES[name]: name for name in (*_ARGUMENTS, *_NEEDS) if name in TYPES},
    type({}.keys()): "dict_keys",
    type({}.values()): "dict_values",
    type({}.items()): "dict_items",
}
# What arguments from outside may be: nothing whose methods the program would answer for.
_PARTS = {int, float, str, tuple, type(None)}


def is_builtin(kind: type) -> bool:
    """Return whether a type is one that Python calls by its name."""
    return TYPES.get(kind.__name__) is kind


def name_of(kind: type) -> str:
    """Return the name of a type that ``taken_apart`` knows, else nothing."""
    if kind in _NAMES:
        return _NAMES[kind]
    name = kind.__name__
    home = sys.modules.get(_MODULES.get(name, ""))  # whoever has such a value has its module
    return name if home and getattr(home, name, None) is kind else ""


def is_mutable(name: str) -> bool:
    """Return whether the type of a name is a container that can change."""
    return name in _NEEDS


def taken_apart(name: str, value: object) -> tuple[object, ...]:
    """Return the arguments of ``made``; for a mutable container those of an empty one."""
    return (_NEEDS[name] if name in _NEEDS else _ARGUMENTS[name])(value)


def made(name: str, args: Any) -> Any:
    """Make a value.

    Args:
        name: Its type.
        args: As from ``taken_apart``, or forged.

    Raises:
        Exception: There is no such type, or it takes no such arguments.
    """
    if type(args) is not tuple or not (name == "defaultdict" or all(map(_is_part, args))):
        raise TypeError(f"not what makes a {name}")
    if name not in _NEEDS and name not in _ARGUMENTS:
        raise TypeError(f"no type of plain data: {name}")
    return (_MAKERS.get(name) or _type(name))(*args)


def contents(container: Any) -> tuple[object, ...]:
    """Return what is in a mutable container: its items, of a dict first the keys."""
    if isinstance(container, dict):
        return (*container, *container.values())
    return tuple(container)


def refill(container: Any, items: tuple[object, ...]) -> None:
    """Give a mutable container other ``contents``.

    Raises:
        Exception: These cannot be its contents.
    """
    if type(items) is not tuple:
        raise TypeError("no contents")
    container.clear()
    if isinstance(container, dict):
        half = len(items) // 2
        for key, value in zip(items[:half], items[half:], strict=True):
            container[key] = value
    elif isinstance(container, set):
        container.update(items)
    else:
        container.extend(items)


def exception(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    """Make an exception, of another type where the arguments are not those of its own.

    Raises:
        TypeError: This is no type of exceptions.
    """
    if type(kind) is not type or not issubclass(kind, BaseException) or type(args) is not tuple:
        raise TypeError("not an exception")
    try:
        return kind(*args)
    except Exception:
        return Exception(*args)


def _type(name: str) -> Callable[..., object]:
    if name not in _MODULES:
        return TYPES[name]
    found: type = getattr(__import__(_MODULES[name]), name)
    return found


def _is_part(arg: object) -> bool:
    return type(arg) in _PARTS or name_of(type(arg)) in {"timedelta", "timezone"}


def _clock(value: Any) -> tuple[int, ...]:
    return value.hour, value.minute, value.second, value.microsecond
