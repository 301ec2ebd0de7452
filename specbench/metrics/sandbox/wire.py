"""Plain data as bytes and back, between two processes of which one trusts nothing it reads.

Values are told apart by their exact type. An object of any other type, subclasses of the plain ones
included, crosses as a number that stands for it. Mutable containers are numbered in the order in
which they come, so that one that comes twice, or inside itself, is one on the other side, too; with
a list of those that both sides have already, one crosses as what it is there.
"""

from __future__ import annotations

from . import kinds
from .kinds import TYPES
from .pipes import MAX_BYTES, SIZE, Gone

TYPE_CHECKING = False  # as in ``typing``, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 100

_CONSTANTS: dict[bytes, object] = {b"N": None, b"T": True, b"F": False, b"E": ...}
_FROZEN: dict[bytes, type] = {b"t": tuple, b"z": frozenset}
_MUTABLE: dict[bytes, type] = {b"l": list, b"s": set, b"d": dict}
_TAGS = {kind: tag for tag, kind in (_FROZEN | _MUTABLE).items()}
_CONSTANT_TAGS: dict[type, bytes] = {type(None): b"N", type(...): b"E"}


def encode(
    value: object, opaque: Callable[[object], int], shared: list[Any] | None = None
) -> bytes:
    """Return a value as bytes.

    Args:
        value: Plain data, see ``kinds``, or a container of such; builtin types themselves and
            their exceptions count as plain.
        opaque: Gives the number that stands for an object of another type.
        shared: Mutable containers that the other side has; those of the value are added.

    Raises:
        ValueError: Nested too deeply, or too long.
    """
    writer = _Writer(opaque, [] if shared is None else shared)
    writer.value(value, MAX_DEPTH)
    message = b"".join(writer.parts)
    if len(message) > MAX_BYTES:
        raise ValueError(f"a value of more than {MAX_BYTES} bytes")
    return message


def decode(message: bytes, opaque: Callable[[int], object], shared: list[Any] | None = None) -> Any:
    """Return the value that was encoded.

    Args:
        message: Bytes, possibly forged.
        opaque: Gives the object that a number stands for.
        shared: As for ``encode``.

    Raises:
        Gone: These bytes are no value.
    """
    reader = _Reader(message, opaque, [] if shared is None else shared)
    try:
        value = reader.value(MAX_DEPTH)
        if reader.rest():
            raise ValueError("more than a value")
    except Exception as error:
        raise Gone("not a value") from error
    return value


def nothing_opaque(value: object) -> int:
    """Refuse objects that are not plain, for ``encode`` and ``decode``."""
    raise TypeError(f"not plain data: {type(value).__name__}")


class _Writer:
    def __init__(self, opaque: Callable[[object], int], shared: list[Any]) -> None:
        self.parts: list[bytes] = []
        self._opaque, self._shared = opaque, shared
        self._numbers = {id(container): at for at, container in enumerate(shared)}

    def value(self, value: Any, depth: int) -> None:
        if not depth:
            raise ValueError("a value that is nested too deeply")
        kind = type(value)
        if kind is bool:
            self.parts.append(b"T" if value else b"F")
        elif kind in _CONSTANT_TAGS:
            self.parts.append(_CONSTANT_TAGS[kind])
        elif kind is int:
            self._integer(b"i", value)
        elif kind is float:
            self._sized(b"f", repr(value).encode())
        elif kind is str:
            self._sized(b"u", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            self._sized(b"b", value)
        elif kind is tuple or kind is frozenset:
            self._items(_TAGS[kind], tuple(value), depth)
        elif name := kinds.name_of(kind):
            self._known(name, value, depth)
        elif kinds.is_builtin(kind) and issubclass(kind, BaseException):
            self._sized(b"e", kind.__name__.encode())
            self.value(value.args, depth - 1)
        elif kind is type and kinds.is_builtin(value):
            self._sized(b"y", value.__name__.encode())
        else:
            self._integer(b"h", self._opaque(value))

    def _known(self, name: str, value: Any, depth: int) -> None:
        if not kinds.is_mutable(name):
            self._sized(b"x", name.encode())
            self.value(kinds.taken_apart(name, value), depth - 1)
        elif id(value) in self._numbers:
            self._integer(b"r", self._numbers[id(value)])
        else:
            self._numbers[id(value)] = len(self._shared)
            self._shared.append(value)
            tag = _TAGS.get(type(value), b"m")
            if tag == b"m":
                self._sized(tag, name.encode())
                self.value(kinds.taken_apart(name, value), depth - 1)
                tag = b""
            self._items(tag, kinds.contents(value), depth)

    def _items(self, tag: bytes, items: tuple[object, ...], depth: int) -> None:
        self.parts.append(tag + len(items).to_bytes(SIZE, "big"))
        for item in items:
            self.value(item, depth - 1)

    def _sized(self, tag: bytes, payload: bytes) -> None:
        self.parts.append(tag + len(payload).to_bytes(SIZE, "big") + payload)

    def _integer(self, tag: bytes, value: int) -> None:
        # Not as digits: those take a time that grows with the square of their number.
        size = value.bit_length() // 8 + 1
        self._sized(tag, value.to_bytes(size, "big", signed=True))


class _Reader:
    def __init__(self, message: bytes, opaque: Callable[[int], object], shared: list[Any]) -> None:
        self._message, self._at = message, 0
        self._opaque, self._shared = opaque, shared

    def rest(self) -> int:
        return len(self._message) - self._at

    def value(self, depth: int) -> Any:
        if not depth:
            raise ValueError("nested too deeply")
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _FROZEN:
            return _FROZEN[tag](self._items(depth))
        if tag in _MUTABLE:
            return self._filled(_MUTABLE[tag](), depth)
        payload = self._take(self._size())
        if tag == b"m":
            return self._filled(kinds.made(payload.decode(), self.value(depth - 1)), depth)
        if tag == b"x":
            return kinds.made(payload.decode(), self.value(depth - 1))
        if tag == b"e":
            return kinds.exception(TYPES[payload.decode()], self.value(depth - 1))
        return self._scalar(tag, payload)

    def _filled(self, container: Any, depth: int) -> Any:
        self._shared.append(container)  # before its items, which may refer to it
        kinds.refill(container, self._items(depth))
        return container

    def _items(self, depth: int) -> tuple[object, ...]:
        size = self._size()
        if size > self.rest():  # each takes a byte or more
            raise ValueError("cut off")
        return tuple([self.value(depth - 1) for _ in range(size)])

    def _size(self) -> int:
        return int.from_bytes(self._take(SIZE), "big")

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._message):
            raise ValueError("cut off")
        return self._message[start : self._at]

    def _scalar(self, tag: bytes, payload: bytes) -> object:
        if tag == b"u":
            return payload.decode("utf-8", "surrogatepass")
        if tag == b"b":
            return payload
        if tag == b"f":
            return float(payload)
        if tag == b"y":
            return TYPES[payload.decode()]
        number = int.from_bytes(payload, "big", signed=True)
        if tag == b"i":
            return number
        if tag == b"h":
            return self._opaque(number)
        if tag == b"r":
            return self._shared[number]
        raise ValueError("no such type")
