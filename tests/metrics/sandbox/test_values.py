"""Values of the usual types cross between program and tests both ways, equal and of their type."""

from collections.abc import Callable

import pytest

IMPORTS = (
    "from collections import Counter, OrderedDict, defaultdict, deque\n"
    "from datetime import date, datetime, time, timedelta, timezone\n"
    "from decimal import Decimal\nfrom fractions import Fraction\nimport math\n"
)
# What a program returns, and what a test may say about it.
VALUES = [
    ("range(1, 9, 2)", "v == range(1, 9, 2) and list(v) == [1, 3, 5, 7] and 3 in v"),
    ("bytearray(b'a')", "v == b'a' and type(v) is bytearray"),
    ("...", "v is ..."),
    ("slice(1, None, 2)", "[0, 1, 2, 3][v] == [1, 3]"),
    ("Decimal('3.10')", "v == Decimal('3.1') and str(v) == '3.10' and abs(v - 3) < 1"),
    ("Decimal(3)", "v == 3 and sorted([v, 2]) == [2, 3] and round(v / 4, 1) == Decimal('0.8')"),
    ("Fraction(1, 2)", "v == 0.5 and v == Fraction(2, 4) and math.isclose(v, 0.5)"),
    ("date(2020, 1, 2)", "v == date(2020, 1, 2) and v.year == 2020 and v < date(2021, 1, 1)"),
    ("datetime(2020, 1, 2, 3, 4, 5, 6)", "v == datetime(2020, 1, 2, 3, 4, 5, 6)"),
    ("datetime(2020, 1, 1, tzinfo=timezone.utc)", "v.isoformat() == '2020-01-01T00:00:00+00:00'"),
    ("time(1, 2)", "v == time(1, 2)"),
    ("date(2020, 1, 2) - date(2020, 1, 1)", "v == timedelta(1) and v.days == 1"),
    ("deque([1, 2], 3)", "v == deque([1, 2]) and v.maxlen == 3 and isinstance(v, deque)"),
    ("{1: 2}.keys()", "v == {1} and sorted(v) == [1] and v == {1: 3}.keys()"),
    ("{1: 2}.values()", "list(v) == [2] and sum(v) == 2"),
    ("{1: 2}.items()", "dict(v) == {1: 2} and (1, 2) in v and v == {(1, 2)}"),
    (
        "Counter('aab')",
        "v == {'a': 2, 'b': 1} == Counter('aba') and v.total() == 3",
    ),
    ("OrderedDict(b=1, a=2)", "list(v.items()) == [('b', 1), ('a', 2)] and v == dict(a=2, b=1)"),
    ("defaultdict(int, {1: 2})", "v == {1: 2} and isinstance(v, dict) and v[3] == 0"),
    ("defaultdict(lambda: [5])", "v == {} and v[3] == [5]"),
    ("[Fraction(1, 2), {date(2020, 1, 2)}]", "v == [0.5, {date(2020, 1, 2)}]"),
    ("ValueError('x', 1)", "type(v) is ValueError and v.args == ('x', 1)"),
]


@pytest.mark.parametrize(("value", "seen"), VALUES)
def test_a_value_comes_back_as_what_it_is(
    value: str, seen: str, passes: Callable[..., bool]
) -> None:
    assert passes(f"{IMPORTS}def f(): return {value}", IMPORTS, f"v = f()\nassert {seen}")
    assert not passes(f"{IMPORTS}def f(): return {value}", IMPORTS, "assert f() == 'other'")


@pytest.mark.parametrize("value", [value for value, _ in VALUES if "lambda" not in value])
def test_a_test_can_hand_over_a_value(value: str, passes: Callable[..., bool]) -> None:
    program = f"{IMPORTS}def f(v): return type(v) is type({value}) and repr(v) == repr({value})"
    assert passes(program, IMPORTS, f"assert f({value})")


@pytest.mark.parametrize(
    "forged",
    [
        "'x', 'open', ('/etc/passwd',)",
        "'x', 'bytes', (5,)",
        "'x', 'range', (1,) * 9",
        "'x', 'Decimal', ('no number',)",
        "'x', 'date', (2020, 13, 1)",
        "'x', 'Fraction', (1, 0)",
        "'x', 'Fraction', (One(), 1)",
        "'x', 'range', 5",
        "'e', 'int', (5,)",
        "'e', 'ValueError', 5",
        "'m', 'range', (5,)",
        "'m', 'defaultdict', (5,)",
    ],
)
def test_forged_values_end_the_program(forged: str, passes: Callable[..., bool]) -> None:
    program = (
        "import sys\nwire = sys.modules['sandbox.wire']\nclass One(int):\n    pass\n"
        "class Forged: pass\n"
        "def value(self, value, depth, old=wire._Writer.value):\n"
        "    if type(value) is Forged:\n"
        f"        tag, name, args = {forged}\n"
        "        self._sized(tag.encode(), name.encode())\n"
        "        old(self, args, depth)\n"
        "        if tag == 'm':\n            self._items(b'', (), depth)\n"
        "    else:\n        old(self, value, depth)\n"
        "wire._Writer.value = value\n"
        "def f(): return Forged()\n"
    )
    assert not passes(program, "try:\n    f()\nexcept BaseException:\n    pass")
    assert passes(program.replace(forged, "'x', 'range', (5,)"), "assert f() == range(5)")
    assert passes(program.replace(forged, "'m', 'deque', ()"), "assert len(f()) == 0")
