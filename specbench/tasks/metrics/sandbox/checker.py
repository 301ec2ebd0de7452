"""The checker: runs the tests, which call a program in another process."""

from __future__ import annotations

import builtins

from .program import perform
from .wire import Gone, decode, encode, receive, refill, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PLAIN = {int, float, complex, str, bytes, list, tuple, set, frozenset, dict}


class BrokenTests(Exception):
    """The tests cannot pass for any program."""


def passes(program: Program, text: str, imports: str, names: tuple[str, ...]) -> bool:
    """Run a program and its tests; return whether it runs without error and no test fails.

    ``text``, ``imports`` and ``names`` are those of ``statements.Tests``.
    """
    space: dict[str, Any] = {"__builtins__": vars(builtins)}
    try:
        exec(imports, space)
    except Exception as error:
        raise BrokenTests(f"{type(error).__name__}: {error}") from error
    try:
        # A tuple of names, since the program could change a list.
        functions = program.ask(dict, "run", names)
        # Compiled separately, so that an unclosed string or block cannot swallow them.
        code = compile(text, "<tests>", "exec", dont_inherit=True)
        exec(code, space | {name: functions[name] for name in names if name in functions})
    except BaseException:  # including SystemExit
        return False
    return not program.gone  # even if a test caught the exception


class Program:
    """The connection to the program's process; nothing received from it is trusted."""

    def __init__(self, requests: int, replies: int, deadline: float) -> None:
        self._requests, self._replies, self._deadline = requests, replies, deadline
        self._handles: dict[int, Handle] = {}
        self.gone = False  # whether the process ended, was late or sent invalid data

    def ask(self, kind: type, operation: str, *args: object, **named: object) -> Any:
        """Return the result of an operation in that process, see ``program.Objects.answer``.

        The type of the result must be exactly ``kind``, unless that is ``object``. Mutable
        containers in the arguments are updated to the program's changes.

        Raises:
            BaseException: The operation's exception, as a builtin type.
            Gone: There is no valid answer.
        """
        shared: list[Any] = []
        request = encode((operation, args, named), self._number, shared)

        def handle(number: int) -> Handle:
            return self._handles.setdefault(number, Handle(self, number))

        try:
            send(self._requests, request, self._deadline)
            reply = decode(receive(self._replies, self._deadline), handle, shared)
            try:
                error, result, changes = _exactly(tuple, reply)
                for number, items in _exactly(dict, changes).items():
                    refill(shared[number], items)
                if error is None:
                    return result if kind is object else _exactly(kind, result)
            except Exception as invalid:
                raise Gone("an invalid answer") from invalid
        except Gone:
            self.gone = True
            raise
        if type(error) is StopIteration and operation != "next":
            # As in a generator; otherwise it would silently end a ``map`` in a test.
            raise RuntimeError("the program raised StopIteration") from error
        raise error

    def _number(self, value: object) -> int:
        if type(value) is not Handle:
            raise TypeError(f"tests cannot pass a {type(value).__name__} to a program")
        return value._handle_number


def _exactly(kind: type, value: Any) -> Any:
    """Return a value of exactly this type; an object could deceive ``isinstance``."""
    if type(value) is not kind:
        raise TypeError(f"no {kind.__name__}")
    return value


class Handle:
    """A proxy for an object of the program that is not plain data: a function, an instance, ...

    Operations on it run in the program's process, except comparisons and arithmetic with plain
    data, which would reveal expected values to the program. For these, an object of a subclass of a
    plain type is replaced by its content here; other objects equal no plain data.
    """

    __slots__ = ("_handle_number", "_handle_program")
    _handle_program: Program
    _handle_number: int

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_handle_program", program)
        object.__setattr__(self, "_handle_number", number)

    def __enter__(self: Any) -> object:
        return self.__getattr__("__enter__")()

    def __exit__(self: Any, kind: type | None, *raised: object) -> None:
        # The result is ignored: a program may not suppress a test's exceptions.
        self.__getattr__("__exit__")(*((Exception, Exception(), None) if kind else (None,) * 3))

    def __contains__(self: Any, item: object) -> bool:
        for content in _contents(self):
            return item in content
        return any(member is item or member == item for member in self)  # in this process

    def __instancecheck__(self, instance: object) -> bool:
        return type(instance) is Handle and self._handle_program.ask(
            bool, "isinstance", instance, self
        )

    @property  # type: ignore[misc]
    def __class__(self: Any) -> Any:
        """The plain base type, for ``isinstance``, else the object's own class."""
        for content in _contents(self):
            return type(content)
        return self.__getattr__("__class__")


def _contents(value: Handle) -> list[Any]:
    """Return the plain copy of an object of a subclass of a plain type, in a list, or []."""
    contents = value._handle_program.ask(tuple, "plain", value)
    return [content for content in contents[:1] if type(content) in _PLAIN]


def _asked(operation: str, kind: type) -> Callable[..., object]:
    def ask(value: Handle, *args: object, **named: object) -> object:
        return value._handle_program.ask(kind, operation, value, *args, **named)

    return ask


def _computed(operation: str, reflected: bool = False) -> Callable[..., object]:
    def compute(value: Handle, *others: object) -> object:
        if others and all(type(other) is Handle for other in others):
            return value._handle_program.ask(object, operation, value, *others)
        for content in _contents(value):
            return perform(operation, *((*others, content) if reflected else (content, *others)))
        if others:
            return NotImplemented
        raise TypeError("an object of the program that is not a number")

    return compute


# Operations in the program's process, and the required type of the result.
for _name, _kind in {
    **dict.fromkeys(("call", "getattr", "setattr", "delattr"), object),
    **dict.fromkeys(("getitem", "setitem", "delitem", "next"), object),
    **{"iter": Handle, "len": int, "bool": bool, "hash": int, "str": str, "repr": str},
}.items():
    setattr(Handle, f"__{_name}__", _asked(_name, _kind))
for _name in (
    *("eq", "lt", "le", "gt", "ge"),
    *("neg", "pos", "abs", "invert", "index", "float", "int", "round"),
):
    setattr(Handle, f"__{_name}__", _computed(_name))
for _name in (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and_", "or_", "xor"),
):
    setattr(Handle, f"__{_name.rstrip('_')}__", _computed(_name))
    setattr(Handle, f"__r{_name.rstrip('_')}__", _computed(_name, reflected=True))
