"""Plain data as bytes and back, between two processes of which one trusts nothing it reads.

Values are told apart by their exact type. An object of any other type, subclasses of the plain ones
included, crosses as a number that stands for it.
"""

from __future__ import annotations

import builtins
import select
import time
from os import read, write  # as they are before a program can replace them in their module

TYPE_CHECKING = False  # as in ``typing``, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

MAX_BYTES = 8 << 20
MAX_DEPTH = 100
_SIZE = 4  # bytes of a length

_CONSTANTS: dict[bytes, object] = {b"N": None, b"T": True, b"F": False}
_CONTAINERS: dict[bytes, type] = {b"l": list, b"t": tuple, b"s": set, b"z": frozenset}
_TYPES = {kind.__name__: kind for kind in vars(builtins).values() if isinstance(kind, type)}
_TAGS = {kind: tag for tag, kind in _CONTAINERS.items()}


class Gone(BaseException):
    """The other side has ended, is late or talks nonsense; no test may catch this by accident."""


def encode(value: object, opaque: Callable[[object], int]) -> bytes:
    """Return a value as bytes.

    Args:
        value: Plain data, or a container of such; builtin types themselves count as plain.
        opaque: Gives the number that stands for an object of another type.

    Raises:
        ValueError: Nested too deeply, or too long.
    """
    parts: list[bytes] = []
    _append(value, opaque, parts, MAX_DEPTH)
    message = b"".join(parts)
    if len(message) > MAX_BYTES:
        raise ValueError(f"a value of more than {MAX_BYTES} bytes")
    return message


def decode(message: bytes, opaque: Callable[[int], object]) -> Any:
    """Return the value that was encoded.

    Args:
        message: Bytes, possibly forged.
        opaque: Gives the object that a number stands for.

    Raises:
        Gone: These bytes are no value.
    """
    try:
        value, end = _read(message, 0, opaque, MAX_DEPTH)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise Gone("not a value") from error
    if end != len(message):
        raise Gone("more than a value")
    return value


def nothing_opaque(value: object) -> int:
    """Refuse objects that are not plain, for ``encode`` and ``decode``."""
    raise TypeError(f"not plain data: {type(value).__name__}")


def send(pipe: int, message: bytes, deadline: float | None = None) -> None:
    """Write a message with its length.

    Args:
        pipe: File descriptor.
        message: At most ``MAX_BYTES``.
        deadline: Time of ``time.monotonic`` when to give up; None waits for ever.

    Raises:
        Gone: The other side does not read.
    """
    rest = memoryview(len(message).to_bytes(_SIZE, "big") + message)
    while rest:
        _wait(pipe, select.POLLOUT, deadline)
        try:  # No more than a pipe takes at once where it is ready, so that it cannot block.
            rest = rest[write(pipe, rest[: select.PIPE_BUF]) :]
        except OSError as error:
            raise Gone("nobody reads") from error


def receive(pipe: int, deadline: float | None = None) -> bytes:
    """Read a message; see ``send``.

    Raises:
        Gone: It does not come, or is longer than allowed.
    """
    size = int.from_bytes(_exactly(pipe, _SIZE, deadline), "big")
    if size > MAX_BYTES:
        raise Gone("a message that is too long")
    return _exactly(pipe, size, deadline)


def _exactly(pipe: int, size: int, deadline: float | None) -> bytes:
    parts = []
    while size:
        _wait(pipe, select.POLLIN, deadline)
        got = read(pipe, min(size, 1 << 16))
        if not got:
            raise Gone("nobody writes")
        parts.append(got)
        size -= len(got)
    return b"".join(parts)


def _wait(pipe: int, event: int, deadline: float | None) -> None:
    if deadline is None:
        return
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise Gone("late")


def _sized(tag: bytes, payload: bytes) -> bytes:
    return tag + len(payload).to_bytes(_SIZE, "big") + payload


def _append(value: object, opaque: Callable[[object], int], to: list[bytes], depth: int) -> None:
    if not depth:
        raise ValueError("a value that is nested too deeply")
    kind = type(value)
    if value is None or kind is bool:
        to.append(b"N" if value is None else b"T" if value else b"F")
    elif type(value) is int:
        to.append(_integer(b"i", value))
    elif type(value) is float:
        to.append(_sized(b"f", repr(value).encode()))
    elif type(value) is complex:
        to.append(b"c")
        _append(value.real, opaque, to, depth - 1)
        _append(value.imag, opaque, to, depth - 1)
    elif type(value) is str:
        to.append(_sized(b"u", value.encode("utf-8", "surrogatepass")))
    elif type(value) is bytes:
        to.append(_sized(b"b", value))
    elif type(value) is dict:
        to.append(b"d" + len(value).to_bytes(_SIZE, "big"))
        _append_all((part for item in value.items() for part in item), opaque, to, depth)
    elif isinstance(value, (list, tuple, set, frozenset)) and kind in _TAGS:
        to.append(_TAGS[kind] + len(value).to_bytes(_SIZE, "big"))
        _append_all(value, opaque, to, depth)
    elif isinstance(value, type) and _TYPES.get(value.__name__) is value:
        to.append(_sized(b"y", value.__name__.encode()))
    else:
        to.append(_integer(b"h", opaque(value)))


def _append_all(
    values: Iterable[object], opaque: Callable[[object], int], to: list[bytes], depth: int
) -> None:
    for value in values:
        _append(value, opaque, to, depth - 1)


def _integer(tag: bytes, value: int) -> bytes:
    # Not as digits: those take a time that grows with the square of their number.
    return _sized(tag, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _read(
    message: bytes, at: int, opaque: Callable[[int], object], depth: int
) -> tuple[object, int]:
    """Return the value that begins at an index, and the index after it."""
    if not depth:
        raise ValueError("nested too deeply")
    tag, at = message[at : at + 1], at + 1
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag == b"c":
        real, at = _read(message, at, opaque, depth - 1)
        imag, at = _read(message, at, opaque, depth - 1)
        if type(real) is not float or type(imag) is not float:
            raise TypeError("a complex number of other things than floats")
        return complex(real, imag), at
    size, at = int.from_bytes(message[at : at + _SIZE], "big"), at + _SIZE
    if at + size > len(message):  # of items, too: each takes a byte or more
        raise ValueError("cut off")
    if tag in _CONTAINERS or tag == b"d":
        items = []
        for _ in range(2 * size if tag == b"d" else size):
            item, at = _read(message, at, opaque, depth - 1)
            items.append(item)
        if tag == b"d":
            return dict(zip(items[::2], items[1::2], strict=True)), at
        return _CONTAINERS[tag](items), at
    return _scalar(tag, message[at : at + size], opaque), at + size


def _scalar(tag: bytes, payload: bytes, opaque: Callable[[int], object]) -> object:
    if tag == b"u":
        return payload.decode("utf-8", "surrogatepass")
    if tag == b"b":
        return payload
    if tag == b"f":
        return float(payload)
    if tag == b"y":
        return _TYPES[payload.decode()]
    number = int.from_bytes(payload, "big", signed=True)
    if tag == b"i":
        return number
    if tag == b"h":
        return opaque(number)
    raise ValueError("no such type")
