"""The checker: runs the tests, with stand-ins for what the program defines."""

from __future__ import annotations

import builtins

from .wire import Gone, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any


def holds(tests: tuple[str, ...], entry_point: str, program: Program) -> bool:
    """Return whether a program runs to its end and no test fails.

    Args:
        tests: Python statements.
        entry_point: Function that they test, see ``wanted``; or nothing.
        program: The program, which has not run yet.
    """
    try:
        program.ask("run")
        # Compiled apart from the program, so that no open string or block can swallow them.
        code = compile("\n".join(tests), "<tests>", "exec", dont_inherit=True)
        names = wanted(code, entry_point)
        found = program.exactly(dict, "find", names)
        defined = {name: found[name] for name in names if name in found}  # and no other
        exec(code, {"__builtins__": vars(builtins), **defined})
    except BaseException:  # whatever it is, SystemExit included
        return False
    return not program.gone  # also where a test caught it


def wanted(code: CodeType, entry_point: str = "") -> list[str]:
    """Return the names that tests may take from the program.

    Builtins are the checker's own, or ``def abs(x): return 0`` would help against
    ``abs(f(x) - 3) < 1e-6``, except for one that is the entry point, or where the tests name
    nothing else, as in ``assert sum(10, 15) == 6``.
    """
    names = set(_names(code))
    chosen = {name for name in names if not hasattr(builtins, name)} | ({entry_point} & names)
    return sorted(chosen or names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _names(constant)


class Program:
    """The other end of the program's process; nothing that comes from there is trusted.

    Attributes:
        gone: Whether the process ended, was late or sent nonsense.
    """

    def __init__(self, requests: int, replies: int, deadline: float) -> None:
        """Take the pipes to and from the process, and the time of the clock when to give up."""
        self._requests, self._replies, self._deadline = requests, replies, deadline
        self._standing: dict[int, Object] = {}
        self.gone = False

    def ask(self, operation: str, *args: object) -> Any:
        """Return the result of one of the operations of ``program.Objects``.

        Raises:
            Exception: What the operation raised there, as the builtin type that it derives from.
            Gone: No answer.
        """
        request = encode((operation, *args), number)
        try:
            send(self._requests, request, self._deadline)
        except Gone:
            self.gone = True
            raise
        return self._answer()

    def _answer(self) -> Any:
        try:
            reply = decode(receive(self._replies, self._deadline), self._stand_in)
            match reply:
                case (True, value):
                    return value
                case (False, str(kind), str(text)):
                    raise _exception(kind, text)
            raise Gone("neither a result nor an exception")
        except Gone:
            self.gone = True
            raise

    def call(self, function: Object, args: list[object], named: dict[str, object]) -> object:
        """Call a function of the program, which may change lists, dicts and sets given to it."""
        match self.ask("call", function, args, named):
            case (result, dict(changed)):
                for at, new in changed.items():
                    _refill(args[at], new)
                return result
        raise self._nonsense()

    def exactly(self, kind: type, operation: str, *args: object) -> Any:
        """Return a result that must be of a certain plain type."""
        result = self.ask(operation, *args)
        if type(result) is not kind:
            raise self._nonsense()
        return result

    def _nonsense(self) -> Gone:
        self.gone = True
        return Gone("not what was asked for")

    def _stand_in(self, number: int) -> Object:
        if number not in self._standing:
            self._standing[number] = Object(self, number)
        return self._standing[number]


def number(value: object) -> int:
    """Return the number of an object of the program.

    Raises:
        TypeError: It is an object of the tests, and not plain data.
    """
    if type(value) is not Object:
        raise TypeError(f"tests cannot hand a {type(value).__name__} to a program")
    return object.__getattribute__(value, "_Object__number")  # type: ignore[no-any-return]


class Object:
    """Stands for an object of the program: a function, a class, an instance, a generator, ...

    It equals plain data only where it is of a subclass of a plain type, and then what is compared
    is its content, here. There is no arithmetic and no order, since the program would be handed
    what it is expected to return.
    """

    __slots__ = ("__number", "__program")
    __number: int
    __program: Program

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_Object__program", program)
        object.__setattr__(self, "_Object__number", number)

    def __call__(self, *args: object, **named: object) -> object:  # noqa: D102
        return self.__program.call(self, list(args), named)

    def __getattr__(self, name: str) -> object:
        return self.__program.ask("attribute", self, name)

    def __setattr__(self, name: str, new: object) -> None:
        self.__program.ask("assign", self, name, new)

    def __getitem__(self, key: object) -> object:
        return self.__program.ask("item", self, key)

    def __len__(self) -> int:
        return self.__program.exactly(int, "length", self)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[object]:
        return self.__program.exactly(Object, "iterator", self)  # type: ignore[no-any-return]

    def __next__(self) -> object:
        return self.__program.ask("following", self)

    def __bool__(self) -> bool:
        return self.__program.exactly(bool, "truth", self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return self.__program.exactly(str, "text", self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self.__program.exactly(str, "representation", self)  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return hash(self.__number)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Object:
            return self.__program.exactly(bool, "same", self, other)  # type: ignore[no-any-return]
        content = self.__program.exactly(tuple, "plain", self)
        return len(content) == 1 and type(content[0]) is not Object and bool(content[0] == other)


def _exception(kind: str, text: str) -> Exception:
    found = getattr(builtins, kind, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        found = Exception
    try:
        made: Exception = found.__new__(found, text)
        return made
    except TypeError:  # groups of exceptions want more
        return Exception(text)


def _refill(old: object, new: object) -> None:
    """Give a list, dict or set of the tests the content that the program left in it."""
    if isinstance(old, list) and isinstance(new, list):
        old[:] = new
    elif isinstance(old, dict | set) and type(old) is type(new):
        old.clear()
        old.update(new)
