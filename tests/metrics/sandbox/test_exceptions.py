"""Exceptions of a program arrive in the tests as what they were, as far as they are builtin."""

from collections.abc import Callable

import pytest

ERRORS = (
    "class Odd(KeyError):\n    pass\n"
    "def fail(kind):\n    raise kind('no')\n"
    "def odd():\n    raise Odd('odd')\n"
    "def group():\n    raise ExceptionGroup('many', [ValueError(1)])\n"
    "def raising(error):\n    raise error\n"
    "def leave():\n    raise SystemExit(3)\n"
    "class Silent(ValueError):\n    def __str__(self):\n        return 1 / 0\n"
    "def silent():\n    raise Silent\n"
    "class Said(ValueError):\n    def __str__(self):\n        return 'said so'\n"
    "def said():\n    raise Said(1)\n"
    "def deep():\n    raise ValueError(nest(200))\n"
    "def nest(depth):\n    return [nest(depth - 1)] if depth else []\n"
    "def stop():\n    raise StopIteration\n"
    "class Ended:\n    def __iter__(self):\n        return self\n"
    "    def __next__(self):\n        raise StopIteration.__new__(StopIteration, '')\n"
    "def items():\n    yield 1\n    return 7\n"
    "def unicode():\n    '\\udc00'.encode()\n"
)

EXPECTED = [
    ("fail(ValueError)", "ValueError", "str(e) == 'no' and e.args == ('no',)"),
    ("fail(KeyError)", "KeyError", "str(e) == repr('no') and e.args == ('no',)"),
    ("odd()", "KeyError", "e.args == ('odd',)"),
    ("group()", "ExceptionGroup", "type(e.exceptions[0]) is ValueError"),
    ("unicode()", "UnicodeEncodeError", "e.encoding == 'utf-8' and e.start == 0"),
    ("raising(OSError(2, 'x'))", "FileNotFoundError", "e.errno == 2"),
    ("raising(ValueError(1, [2]))", "ValueError", "e.args == (1, [2])"),
    ("leave()", "SystemExit", "e.code == 3"),
    ("raising(KeyboardInterrupt())", "KeyboardInterrupt", "e.args == ()"),
    ("silent()", "ValueError", "e.args == ()"),
    ("said()", "ValueError", "str(e) == 'said so'"),
    ("deep()", "ValueError", "'deep' in str(e)"),
    ("stop()", "StopIteration", "e.value is None"),
    ("next(Ended())", "StopIteration", "not e.value"),
    ("odd.unknown", "AttributeError", "'unknown' in str(e)"),
]


@pytest.mark.parametrize(("deed", "kind", "seen"), EXPECTED)
def test_exceptions_keep_their_type_and_arguments(
    deed: str, kind: str, seen: str, passes: Callable[..., bool]
) -> None:
    test = f"try:\n    {deed}\nexcept {kind} as e:\n    assert {seen}\nelse:\n    assert False"
    assert passes(ERRORS, test)
    assert not passes(ERRORS, deed)


@pytest.mark.parametrize(
    "test",
    [
        "def all(): return (yield from items())\nassert list(all()) == [1]",
        "def all():\n    assert (yield from items()) == 7\nassert list(all()) == [1]",
        "def all(): yield from Ended()\nassert list(all()) == []",
    ],
)
def test_generators_go_through_those_of_the_program(test: str, passes: Callable[..., bool]) -> None:
    assert passes(ERRORS, test)


def test_a_program_that_leaves_while_it_runs_fails(passes: Callable[..., bool]) -> None:
    assert not passes(ERRORS + "leave()", "assert True")
    assert not passes(ERRORS + "raise KeyboardInterrupt", "assert True")
