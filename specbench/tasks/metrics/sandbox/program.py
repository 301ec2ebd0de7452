"""The program's process: runs the program, then performs the checker's requests on its objects.

The program shares this process and may replace anything in it, so the verdict is not decided here.
"""

from __future__ import annotations

import _operator  # ``operator`` is slow to import
import builtins
import os
import sys

from .wire import TYPES, contents, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = {"os", "subprocess", "socket", "shutil", "signal", "ctypes", "fcntl", "pty"}
_HARMLESS = {"os.listdir", "os.scandir"}  # imports search folders for modules
# Conversions from a subclass to its plain type that ignore the subclass's overrides.
_REDUCED: dict[type, Callable[[Any], object]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    list: list.copy,
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    set: set,
    frozenset: frozenset,
    dict: dict.copy,
}


def refuse(event: str, args: tuple[object, ...]) -> None:
    """Audit hook: forbids writing files, processes and network; allows reading and imports."""
    forbidden = event.partition(".")[0] in _FORBIDDEN and event not in _HARMLESS
    writing = event == "open" and isinstance(args[2], int) and args[2] & _WRITING
    if forbidden or writing:
        raise PermissionError(f"a tested program may not do this: {event}")


def serve(source: str, requests: int, replies: int) -> None:
    """Answer requests about a program and its objects until there are no more.

    ``requests`` and ``replies`` are file descriptors; see ``Objects.answer``.
    """
    # A copy, so that a program cannot replace the builtins used here.
    copied = type(sys)("builtins")
    vars(copied).update(vars(builtins))
    sys.modules["builtins"] = copied
    module = type(sys)("program")  # dataclasses and pickle look it up in sys.modules
    sys.modules["program"] = module
    vars(module)["__builtins__"] = vars(copied)
    objects = Objects(source, vars(module))
    while True:
        send(replies, objects.answer(receive(requests)))


def perform(operation: str, *args: Any, **named: Any) -> Any:
    """Apply an operator or a builtin function by its name."""
    function = getattr(_operator, operation, None) or getattr(builtins, operation)
    return function(*args, **named)


class Objects:
    """The program's objects by number, and the operations on them."""

    def __init__(self, source: str, names: dict[str, object]) -> None:
        self._source, self._names = source, names
        self._objects: list[object] = []
        self._numbers: dict[int, int] = {}

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request: a method here, an operator or a builtin, with arguments.

        The answer consists of the exception or None, the result, and the new contents of mutable
        containers in the request that changed, by their number.
        """
        shared: list[object] = []
        operation, args, keywords = decode(request, self._objects.__getitem__, shared)
        before = [contents(container) for container in shared]
        error = result = None
        try:
            handler = getattr(self, operation, None)
            result = handler(*args) if handler else perform(operation, *args, **keywords)
        except BaseException as raised:  # a test may expect any, even SystemExit
            error = _builtin(raised)
        changes = {
            index: now
            for index, (container, old) in enumerate(zip(shared, before, strict=True))
            if len(now := contents(container)) != len(old) or not all(map(_operator.is_, old, now))
        }
        try:
            return encode((error, result, changes), self.number, list(shared))
        except Exception as unfit:  # nested too deeply or too long
            return encode((ValueError(str(unfit)[:1000]), None, {}))

    def number(self, value: object) -> int:
        """Return the number of an object; the object is kept alive so that its id stays unique."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def run(self, names: tuple[str, ...]) -> dict[str, object]:
        """Run the program and return the given names that it defines."""
        exec(compile(self._source, "<program>", "exec", dont_inherit=True), self._names)
        return {name: self._names[name] for name in names if name in self._names}

    def plain(self, value: object) -> tuple[object, ...]:
        """Return the plain copy of an object of a subclass of a plain type, in a tuple, or ()."""
        for kind, reduced in _REDUCED.items():
            if isinstance(value, kind):
                return (reduced(value),)
        return ()


def _builtin(error: BaseException) -> BaseException:
    """Return an exception as its builtin base type, with its arguments or text."""
    kind: Any = next(kind for kind in type(error).__mro__ if kind in TYPES.values())
    try:
        own_text = type(error).__str__ is not kind.__str__
        copied: BaseException = kind(*((str(error)[:1000],) if own_text else error.args))
    except BaseException:  # even its text may raise
        copied = kind.__new__(kind)
    return copied
