"""The program's process: runs the program, then does what the checker asks of its objects.

Everything here may be patched or replaced by the program, since it runs beside it; nothing that
decides a verdict is here.
"""

from __future__ import annotations

import builtins
import os
import sys

from .wire import decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = {"os", "subprocess", "socket", "shutil", "signal", "ctypes", "fcntl", "pty"}
_HARMLESS = {"os.listdir", "os.scandir"}  # imports look for modules in folders
_KINDS = (int, float, complex, bytes, list, tuple, set, frozenset, dict)
# From an object of a subclass to the plain type; ``str`` itself would ask the subclass.
_REDUCED: dict[type, Callable[[Any], object]] = {
    **{kind: kind for kind in _KINDS},
    str: str.__str__,
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
        replies: File descriptor for the answers: ``(True, value)`` or ``(False, type, message)``.
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
        operation, *args = decode(receive(requests), objects.known)
        send(replies, objects.answer(getattr(objects, operation), *args))


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

    def answer(self, function: Callable[..., object], *args: object) -> bytes:
        """Return a call's result or exception as a message."""
        try:
            return encode((True, function(*args)), self.number)
        except Exception as error:
            kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            return encode((False, next(kinds).__name__, str(error)[:1000]), self.number)

    def run(self) -> None:
        """Run the program."""
        exec(compile(self._source, "<program>", "exec", dont_inherit=True), self._names)

    def find(self, names: list[str]) -> dict[str, object]:
        """Return those of the names that the program defines."""
        return {name: self._names[name] for name in names if name in self._names}

    def call(
        self, function: Callable[..., object], args: list[object], named: dict[str, object]
    ) -> tuple[object, dict[int, object]]:
        """Call a function; also return the arguments that it changed, by their place."""
        changeable = [at for at, arg in enumerate(args) if type(arg) in (list, dict, set)]
        before = [encode(args[at], self.number) for at in changeable]
        result = function(*args, **named)
        after = [encode(args[at], self.number) for at in changeable]
        changed = zip(changeable, before, after, strict=True)
        return result, {at: args[at] for at, old, new in changed if old != new}

    def attribute(self, value: object, name: str) -> object:
        """Return an attribute."""
        return getattr(value, name)

    def assign(self, value: object, name: str, new: object) -> None:
        """Set an attribute."""
        setattr(value, name, new)

    def item(self, value: object, key: object) -> object:
        """Return an item, or what a class makes of an index."""
        return value[key]  # type: ignore[index]

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

    def same(self, one: object, other: object) -> bool:
        """Return whether two of the program's objects are equal."""
        return bool(one == other)

    def plain(self, value: object) -> tuple[object, ...]:
        """Return an object of a subclass of a plain type as that type, or nothing."""
        for kind, reduced in _REDUCED.items():
            if isinstance(value, kind):
                return (reduced(value),)
        return ()
