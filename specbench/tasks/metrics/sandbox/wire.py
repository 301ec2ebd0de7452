"""Messages over pipes between two processes, one of which does not trust the other.

A message is a length and one value. Plain data, recognised by its exact type, is copied; other
objects are sent as numbers. A mutable container that occurs twice, or inside itself, remains a
single object, and one that the other side already has is sent as its number.
"""

from __future__ import annotations

import builtins
import select
import sys
import time
from os import read, write  # before a program can replace them in their module

TYPE_CHECKING = False  # as in ``typing``, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_BYTES = 8 << 20
MAX_DEPTH = 100
_SIZE = 4  # bytes of a length or a number

TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
TYPES.pop("__loader__", None)  # the loader of builtin modules
TYPES |= {"NoneType": type(None), "ellipsis": type(...)}
_MODULES = {
    **dict.fromkeys(("deque", "defaultdict", "OrderedDict", "Counter"), "collections"),
    **dict.fromkeys(("date", "time", "datetime", "timedelta"), "datetime"),
    **dict.fromkeys(("dict_keys", "dict_values", "dict_items"), "_collections_abc"),
    "Decimal": "decimal",
    "Fraction": "fractions",
}

# By type of plain data: conversions of values to bytes and back.
_ATOMS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], object]]] = {
    "NoneType": (lambda value: b"", lambda payload: None),
    "ellipsis": (lambda value: b"", lambda payload: ...),
    "bool": (lambda value: b"\1" * value, bool),
    # Not as digits, which would take quadratic time.
    "int": (
        lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True),
        lambda payload: int.from_bytes(payload, "big", signed=True),
    ),
    "float": (lambda value: repr(value).encode(), float),
    "str": (
        lambda value: value.encode("utf-8", "surrogatepass"),
        lambda payload: payload.decode("utf-8", "surrogatepass"),
    ),
    "bytes": (bytes, bytes),
    "type": (lambda value: value.__name__.encode(), lambda payload: TYPES[payload.decode()]),
}
# Immutable values: their parts, and how to build them from parts, if not with the type itself.
_COMPOUNDS: dict[str, tuple[Callable[[Any], tuple[object, ...]], Callable[..., object] | None]] = {
    "tuple": (tuple, lambda *items: items),
    "frozenset": (tuple, lambda *items: frozenset(items)),
    "dict_keys": (tuple, lambda *keys: dict.fromkeys(keys).keys()),
    "dict_values": (tuple, lambda *values: dict(enumerate(values)).values()),
    "dict_items": (tuple, lambda *items: dict(items).items()),
    "an exception": (
        lambda value: (type(value), *value.args),
        lambda kind, *args: _exception(kind, args),
    ),
    "complex": (lambda value: (value.real, value.imag), None),
    "range": (lambda value: (value.start, value.stop, value.step), None),
    "slice": (lambda value: (value.start, value.stop, value.step), None),
    "Decimal": (lambda value: (str(value),), None),
    "Fraction": (lambda value: (value.numerator, value.denominator), None),
    "date": (lambda value: (str(value),), lambda text: _type("date").fromisoformat(text)),
    "time": (lambda value: (str(value),), lambda text: _type("time").fromisoformat(text)),
    "datetime": (lambda value: (str(value),), lambda text: _type("datetime").fromisoformat(text)),
    "timedelta": (lambda value: (value.days, value.seconds, value.microseconds), None),
}
# Mutable containers: the arguments of an empty one, and how to build it from them.
_CONTAINERS: dict[str, tuple[Callable[[Any], tuple[object, ...]], Callable[..., object] | None]] = {
    **dict.fromkeys(
        ("list", "set", "dict", "bytearray", "OrderedDict", "Counter"), (lambda value: (), None)
    ),
    "deque": (lambda value: (value.maxlen,), lambda maxlen: _type("deque")((), maxlen)),
    "defaultdict": (lambda value: (value.default_factory,), None),
}
# Other constructors receive only scalars, never objects with methods of the program.
_OF_ANYTHING = {*list(_COMPOUNDS)[:6], "defaultdict"}
_SCALARS = {int, float, str, type(None)}

_NAMES = (*_ATOMS, *_COMPOUNDS, *_CONTAINERS, "an object", "a known container")
_TAGS = {name: bytes([code]) for code, name in enumerate(_NAMES)}
_BUILTIN = {kind: name for name, kind in TYPES.items() if name in _TAGS}
_BUILTIN |= {kind: "an exception" for kind in TYPES.values() if issubclass(kind, BaseException)}
del _BUILTIN[type]  # only some types are plain data


class Gone(BaseException):
    """The other side ended, is late or sent invalid data; tests must not catch it by accident."""


def send(pipe: int, message: bytes, deadline: float | None = None) -> None:
    """Write a message of at most ``MAX_BYTES``; ``Gone`` if nobody reads it until the deadline."""
    unsent = memoryview(len(message).to_bytes(_SIZE, "big") + message)
    while unsent:
        _wait(pipe, select.POLLOUT, deadline)
        try:  # At most as much as a ready pipe accepts at once, so that it cannot block.
            unsent = unsent[write(pipe, unsent[: select.PIPE_BUF]) :]
        except OSError as error:
            raise Gone("nobody reads") from error


def receive(pipe: int, deadline: float | None = None) -> bytes:
    """Read a message; ``Gone`` if none arrives before the deadline, of ``time.monotonic``."""
    size = int.from_bytes(_exactly(pipe, _SIZE, deadline), "big")
    if size > MAX_BYTES:
        raise Gone("a message that is too long")
    return _exactly(pipe, size, deadline)


def _exactly(pipe: int, size: int, deadline: float | None) -> bytes:
    parts = []
    while size:
        _wait(pipe, select.POLLIN, deadline)
        part = read(pipe, min(size, 1 << 16))
        if not part:
            raise Gone("nobody writes")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(pipe: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(pipe, event)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise Gone("late")


def no_object(_: object) -> Any:
    """Raise ``TypeError`` for objects that are not plain data, in ``encode`` and ``decode``."""
    raise TypeError("not plain data")


def encode(
    value: object, number_of: Callable[[Any], int] = no_object, shared: list[Any] | None = None
) -> bytes:
    """Return a value as bytes; objects are sent as the numbers from ``number_of``.

    ``shared`` lists mutable containers that the other side has; the value's containers are added.
    """
    shared = [] if shared is None else shared
    numbers = {id(container): index for index, container in enumerate(shared)}
    message = bytearray()

    def add(name: str, payload: bytes) -> None:
        message.extend(_TAGS[name] + len(payload).to_bytes(_SIZE, "big") + payload)

    def add_all(tag: bytes, values: tuple[object, ...], depth: int) -> None:
        message.extend(tag + len(values).to_bytes(_SIZE, "big"))
        for value in values:
            add_value(value, depth - 1)

    def add_value(value: Any, depth: int) -> None:
        if not depth:
            raise ValueError("a value is nested too deeply")
        name = _BUILTIN.get(type(value)) or _name(value)
        if name in _ATOMS:
            add(name, _ATOMS[name][0](value))
        elif name in _COMPOUNDS:
            add_all(_TAGS[name], _COMPOUNDS[name][0](value), depth)
        elif name not in _CONTAINERS:
            add(name, number_of(value).to_bytes(_SIZE, "big"))
        elif id(value) in numbers:
            add("a known container", numbers[id(value)].to_bytes(_SIZE, "big"))
        else:
            numbers[id(value)] = len(shared)
            shared.append(value)
            add_all(_TAGS[name], _CONTAINERS[name][0](value), depth)
            add_all(b"", contents(value), depth)

    add_value(value, MAX_DEPTH)
    if len(message) > MAX_BYTES:
        raise ValueError(f"a value has more than {MAX_BYTES} bytes")
    return bytes(message)


def decode(
    message: bytes, object_of: Callable[[int], object] = no_object, shared: list[Any] | None = None
) -> Any:
    """Return the encoded value; the message may be forged, which raises ``Gone``."""
    shared = [] if shared is None else shared
    position = 0

    def take(size: int) -> bytes:
        nonlocal position
        start, position = position, position + size
        if position > len(message):
            raise ValueError("cut off")
        return message[start:position]

    def take_all(size: int, depth: int) -> tuple[object, ...]:
        if size > len(message) - position:  # each value takes a byte or more
            raise ValueError("cut off")
        return tuple([take_value(depth - 1) for _ in range(size)])

    def take_value(depth: int) -> object:
        if not depth:
            raise ValueError("nested too deeply")
        head = take(1 + _SIZE)
        name, size = _NAMES[head[0]], int.from_bytes(head[1:], "big")
        if name in _ATOMS:
            return _ATOMS[name][1](take(size))
        if name in _COMPOUNDS:
            return _made(name, _COMPOUNDS[name][1], take_all(size, depth))
        if name in _CONTAINERS:
            container = _made(name, _CONTAINERS[name][1], take_all(size, depth))
            shared.append(container)  # before its items, which may refer to it
            refill(container, take_all(int.from_bytes(take(_SIZE), "big"), depth))
            return container
        number = int.from_bytes(take(size), "big")
        return object_of(number) if name == "an object" else shared[number]

    try:
        value = take_value(MAX_DEPTH)
        if position < len(message):
            raise ValueError("more than a value")
    except Exception as error:
        raise Gone("not a value") from error
    return value


def contents(container: Any) -> tuple[object, ...]:
    """Return the items of a mutable container; for a dict, its keys and then its values."""
    if isinstance(container, dict):
        return (*container, *container.values())
    return tuple(container)


def refill(container: Any, items: tuple[object, ...]) -> None:
    """Replace the ``contents`` of a mutable container."""
    if type(items) is not tuple:
        raise TypeError("no contents")
    container.clear()
    if isinstance(container, dict):
        half = len(items) // 2
        for key, value in zip(items[:half], items[half:], strict=True):
            container[key] = value
    elif isinstance(container, set):
        # In the order of a set literal; items that are added one by one may iterate in another.
        container.update(frozenset(items))
    else:
        container.extend(items)


def _name(value: object) -> str:
    kind = type(value)
    if kind is type:
        return "type" if value in TYPES.values() else "an object"
    name = kind.__name__
    home = sys.modules.get(_MODULES.get(name, ""))  # loaded if such a value exists
    return name if home and getattr(home, name, None) is kind else "an object"


def _type(name: str) -> Any:
    return TYPES[name] if name in TYPES else getattr(__import__(_MODULES[name]), name)


def _made(name: str, make: Callable[..., object] | None, parts: tuple[object, ...]) -> Any:
    if name not in _OF_ANYTHING and not _SCALARS.issuperset(map(type, parts)):
        raise TypeError(f"not the parts of a {name}")
    return (make or _type(name))(*parts)


def _exception(kind: type, args: tuple[object, ...]) -> Any:
    """Return an exception; a plain ``Exception`` if its type does not accept the arguments."""
    if _BUILTIN.get(kind) != "an exception":
        raise TypeError("not an exception")
    try:
        return kind(*args)
    except Exception:
        return Exception(*args)
