"""What stands, in the tests, for a program that is in another process, and for its objects."""

from __future__ import annotations

import _operator  # ``operator`` is slow to import

from .kinds import exception, refill
from .pipes import Gone, receive, send
from .wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_PLAIN = {int, float, complex, str, bytes, list, tuple, set, frozenset, dict}
_NUMERIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow")
_BITWISE = ("lshift", "rshift", "and_", "or_", "xor")
# By the names of their methods without the underscores.
ARITHMETIC = {name.rstrip("_"): getattr(_operator, name) for name in (*_NUMERIC, *_BITWISE)}
ORDER = {name: getattr(_operator, name) for name in ("lt", "le", "gt", "ge")}
_ALONE = {name: getattr(_operator, name) for name in ("neg", "pos", "abs", "invert")}


def number(value: object) -> int:
    """Return the number of an object of the program.

    Raises:
        TypeError: It is an object of the tests, and not plain data.
    """
    if type(value) is not Object:
        raise TypeError(f"tests cannot hand a {type(value).__name__} to a program")
    return object.__getattribute__(value, "_Object__number")  # type: ignore[no-any-return]


def _program(value: Object) -> Program:
    return object.__getattribute__(value, "_Object__program")  # type: ignore[no-any-return]


def _contents(value: Object) -> list[Any]:
    """Return a copy of an object of a subclass of a plain type as that type, or nothing."""
    contents = _program(value).exactly(tuple, "plain", value)
    return [content for content in contents[:1] if type(content) in _PLAIN]


def _as_number(value: Object) -> Any:
    for content in _contents(value):
        return content
    raise TypeError("an object of the program that is no number")


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

        Lists and the like among the arguments, and in them, are then as the program left them.

        Raises:
            BaseException: What the operation raised there, as the builtin type that it derives
                from.
            Gone: No answer.
        """
        shared: list[Any] = []
        request = encode((operation, *args), number, shared)
        try:
            send(self._requests, request, self._deadline)
            reply = decode(receive(self._replies, self._deadline), self._stand_in, shared)
            return self._result(reply, shared)
        except Gone:
            self.gone = True
            raise

    def _result(self, reply: object, shared: list[Any]) -> Any:
        # Exact types: an object of the program may say that it is of any.
        if type(reply) is not tuple or len(reply) != 3 or type(reply[2]) is not dict:
            raise Gone("neither a result nor an exception")
        succeeded, result, changes = reply
        try:
            for at, items in changes.items():
                refill(shared[at], items)
            error = None if succeeded is True else exception(*result)
        except Exception as nonsense:
            raise Gone("nothing that can be") from nonsense
        if error is not None:
            raise error
        return result

    def exactly(self, kind: type, operation: str, *args: object) -> Any:
        """Return a result that must be of a certain plain type."""
        result = self.ask(operation, *args)
        if type(result) is not kind:
            self.gone = True
            raise Gone("not what was asked for")
        return result

    def _stand_in(self, number: int) -> Object:
        if number not in self._standing:
            self._standing[number] = Object(self, number)
        return self._standing[number]


class Object:
    """Stands for an object of the program: a function, a class, an instance, a generator, ...

    Beside plain data it is its content, where it is of a subclass of a plain type, and what is
    compared or computed is that, here. Other objects equal no plain data, and have no order and
    no arithmetic with it, since the program would be handed what it is expected to return. About
    two of its own objects the program is asked.
    """

    __slots__ = ("__number", "__program")
    __number: int
    __program: Program

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_Object__program", program)
        object.__setattr__(self, "_Object__number", number)

    def __call__(self, *args: object, **named: object) -> object:  # noqa: D102
        return self.__program.ask("call", self, args, named)

    def __getattr__(self, name: str) -> object:
        return self.__program.ask("attribute", self, name)

    def __setattr__(self, name: str, new: object) -> None:
        self.__program.ask("assign", self, name, new)

    def __getitem__(self, key: object) -> object:
        return self.__program.ask("item", self, key)

    def __setitem__(self, key: object, new: object) -> None:
        self.__program.ask("put", self, key, new)

    def __delitem__(self, key: object) -> None:
        self.__program.ask("remove", self, key)

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
        return self.__program.exactly(int, "hashed", self)  # type: ignore[no-any-return]

    def __enter__(self) -> object:
        return self.__program.ask("enter", self)

    def __exit__(self, *raised: object) -> None:
        # Whatever it returns: a program may not swallow what a test raises.
        self.__program.ask("leave", self, raised[0] is not None)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Object:
            return self.__program.exactly(bool, "same", self, other)  # type: ignore[no-any-return]
        return any(content == other for content in _contents(self))

    def __contains__(self, item: object) -> bool:
        # Compared here, so that the program is not told the item.
        for content in _contents(self):
            return item in content
        return any(own is item or own == item for own in iter(self))

    def __instancecheck__(self, instance: object) -> bool:
        return type(instance) is Object and self.__program.exactly(bool, "made", self, instance)

    @property
    def __class__(self) -> Any:
        """The plain type that it derives from, for ``isinstance``, else its own class."""
        for content in _contents(self):
            return type(content)
        return self.__program.ask("attribute", self, "__class__")

    @__class__.setter
    def __class__(self, new: object) -> None:
        raise TypeError("an object of the program keeps its class")

    def __float__(self) -> float:
        return float(_as_number(self))

    def __int__(self) -> int:
        return int(_as_number(self))

    def __index__(self) -> int:
        return _operator.index(_as_number(self))

    def __round__(self, digits: int | None = None) -> Any:
        return round(_as_number(self), digits)


def _of_one(operator: Callable[[Any], object]) -> Callable[[Object], object]:
    return lambda value: operator(_as_number(value))


def _of_two(
    name: str, operator: Callable[[Any, Any], object], swapped: bool = False
) -> Callable[[Object, object], object]:
    def operate(one: Object, other: object) -> object:
        if type(other) is Object:
            return _program(one).ask("operate", name, one, other)
        for content in _contents(one):
            return operator(other, content) if swapped else operator(content, other)
        return NotImplemented

    return operate


for _name, _known in (ARITHMETIC | ORDER).items():
    setattr(Object, f"__{_name}__", _of_two(_name, _known))
for _name, _known in ARITHMETIC.items():
    setattr(Object, f"__r{_name}__", _of_two(_name, _known, swapped=True))
for _name, _known in _ALONE.items():
    setattr(Object, f"__{_name}__", _of_one(_known))
