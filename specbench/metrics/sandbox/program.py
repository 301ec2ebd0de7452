"""The program's process: runs the program, then does what the checker asks of its objects.

Everything here may be patched or replaced by the program, since it runs beside it; nothing that
decides a verdict is here.
"""

from __future__ import annotations

import builtins
import os
import sys
from _operator import is_  # ``operator`` is slow to import

from .kinds import contents, is_builtin
from .objects import ARITHMETIC, ORDER
from .pipes import receive, send
from .wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = {"os", "subprocess", "socket", "shutil", "signal", "ctypes", "fcntl", "pty"}
_HARMLESS = {"os.listdir", "os.scandir"}  # imports look for modules in folders
# From an object of a subclass to the plain type, past whatever the subclass has replaced.
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
    """Audit hook: no files written, no processes, no network; reading and importing are free."""
    forbidden = event.partition(".")[0] in _FORBIDDEN and event not in _HARMLESS
    writing = event == "open" and isinstance(args[2], int) and args[2] & _WRITING
    if forbidden or writing:
        raise PermissionError(f"a tested program may not do this: {event}")


def serve(source: str, requests: int, replies: int) -> None:
    """Answer requests about a program and its objects until there are no more.

    Args:
        source: Text of the program.
        requests: File descriptor where requests come from: a name of ``Objects`` and its arguments.
        replies: File descriptor for the answers: whether it succeeded; the result, or type and
            arguments of the exception; what is now in those lists, dicts and so on of the request
            that the operation changed, by their number.
    """
    # A copy, so that a program that replaces builtins does not replace those used here.
    copied = type(sys)("builtins")
    vars(copied).update(vars(builtins))
    sys.modules["builtins"] = copied
    module = type(sys)("program")  # dataclasses and pickle look for it in sys.modules
    sys.modules["program"] = module
    vars(module)["__builtins__"] = vars(copied)
    objects = Objects(source, vars(module))
    while True:
        send(replies, objects.answer(receive(requests)))


class Objects:
    """The program's objects by number, and what can be asked of them."""

    def __init__(self, source: str, names: dict[str, object]) -> None:
        self._source, self._names = source, names
        self._objects: list[object] = []
        self._numbers: dict[int, int] = {}

    def known(self, number: int) -> object:
        """Return the object that a number stands for."""
        return self._objects[number]

    def number(self, value: object) -> int:
        """Return the number of an object; it is kept, so that no other gets its id."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request, see ``serve``."""
        shared: list[object] = []
        operation, *args = decode(request, self.known, shared)
        before = [contents(container) for container in shared]
        outcome: tuple[bool, object]
        try:
            outcome = True, getattr(self, operation)(*args)
        except BaseException as error:  # SystemExit, too, is one that a test may expect
            outcome = False, _reduced(error)
        changes = {
            at: now
            for at, (container, old) in enumerate(zip(shared, before, strict=True))
            if len(now := contents(container)) != len(old) or not all(map(is_, old, now))
        }
        try:
            return encode((*outcome, changes), self.number, list(shared))
        except Exception as error:  # too deep or too long
            return encode((False, (ValueError, (str(error)[:1000],)), {}), self.number)

    def run(self) -> None:
        """Run the program."""
        exec(compile(self._source, "<program>", "exec", dont_inherit=True), self._names)

    def find(self, names: list[str]) -> dict[str, object]:
        """Return those of the names that the program defines."""
        return {name: self._names[name] for name in names if name in self._names}

    def call(
        self, function: Callable[..., object], args: tuple[object, ...], named: dict[str, object]
    ) -> object:
        """Call a function."""
        return function(*args, **named)

    def attribute(self, value: object, name: str) -> object:
        """Return an attribute."""
        return getattr(value, name)

    def assign(self, value: object, name: str, new: object) -> None:
        """Set an attribute."""
        setattr(value, name, new)

    def item(self, value: object, key: object) -> object:
        """Return an item, or what a class makes of an index."""
        return value[key]  # type: ignore[index]

    def put(self, value: Any, key: object, new: object) -> None:
        """Set an item."""
        value[key] = new

    def remove(self, value: Any, key: object) -> None:
        """Delete an item."""
        del value[key]

    def length(self, value: object) -> int:
        """Return the length."""
        return len(value)  # type: ignore[arg-type]

    def iterator(self, value: object) -> object:
        """Return an iterator."""
        return iter(value)  # type: ignore[call-overload]

    def following(self, value: object) -> object:
        """Return the next item of an iterator."""
        return next(value)  # type: ignore[call-overload]

    def truth(self, value: object) -> bool:
        """Return the truth value."""
        return bool(value)

    def text(self, value: object) -> str:
        """Return the text for people."""
        return str(value)

    def representation(self, value: object) -> str:
        """Return the text for programmers."""
        return repr(value)

    def hashed(self, value: object) -> int:
        """Return the hash."""
        return hash(value)

    def enter(self, value: Any) -> object:
        """Enter a context."""
        return value.__enter__()

    def leave(self, value: Any, failed: bool) -> None:
        """Leave a context, after an exception or without."""
        value.__exit__(*((Exception, Exception(), None) if failed else (None, None, None)))

    def made(self, kind: type, value: object) -> bool:
        """Return whether an object is an instance of a class."""
        return isinstance(value, kind)

    def operate(self, name: str, one: object, other: object) -> object:
        """Return what an operator makes of two of the program's objects."""
        return (ARITHMETIC | ORDER)[name](one, other)

    def same(self, one: object, other: object) -> bool:
        """Return whether two of the program's objects are equal."""
        return bool(one == other)

    def plain(self, value: object) -> tuple[object, ...]:
        """Return an object of a subclass of a plain type as that type, or nothing."""
        for kind, reduced in _REDUCED.items():
            if isinstance(value, kind):
                return (reduced(value),)
        return ()


def _reduced(error: BaseException) -> tuple[type, tuple[object, ...]]:
    """Return the builtin type that an exception derives from, and its arguments or its text."""
    kind: Any = next(filter(is_builtin, type(error).__mro__))
    try:
        own_text = type(error).__str__ is not kind.__str__
        return kind, (str(error)[:1000],) if own_text else error.args
    except BaseException:  # its text may fail, too
        return kind, ()
