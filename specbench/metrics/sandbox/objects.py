"""What stands, in the tests, for the objects of a program that is in another process."""

from __future__ import annotations

import _operator  # ``operator`` is slow to import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .checker import Program

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
