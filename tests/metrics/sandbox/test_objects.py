"""What tests can do with the objects of a program that is in another process."""

from collections.abc import Callable

import pytest

STACK = "class Stack(list):\n    def push(self, x):\n        self.append(x)\n"
RECORDS = (
    "from collections import Counter, OrderedDict, defaultdict, deque, namedtuple\n"
    "from dataclasses import dataclass\n"
    "Pair = namedtuple('Pair', 'x y')\n"
    "@dataclass\nclass Point:\n    x: int\n"
    "def groups(words):\n    found = defaultdict(list)\n"
    "    for word in words:\n        found[len(word)].append(word)\n    return found\n"
)
NUMBERS = "def numbers():\n    n = 0\n    while True:\n        yield n\n        n += 1\n"
CHANGES = (
    "def change(numbers, table, names):\n"
    "    numbers.sort()\n    numbers.append([])\n    table.clear()\n    names.add('z')\n"
)
NODES = (
    "class Node:\n    def __init__(self, value):\n        self.value = value\n"
    "        self.left = self.right = None\n"
    "def height(node):\n    return 1 + max(height(node.left), height(node.right)) if node else 0\n"
)
SPECIAL = (
    "from enum import IntEnum\n"
    "class Size(IntEnum):\n    ONE = 1\n    TWO = 2\n"
    "class Ratio(float):\n    pass\n"
    "class Word(str):\n    pass\n"
    "class Table(dict):\n    pass\n"
    "class Vector:\n    def __init__(self, x):\n        self.x = x\n"
    "    def __add__(self, other):\n        return Vector(self.x + other.x)\n"
    "    def __lt__(self, other):\n        return self.x < other.x\n"
    "    def __eq__(self, other):\n        return self.x == other.x\n"
    "    def __hash__(self):\n        return hash(self.x)\n"
    "class Door:\n    is_open = False\n"
    "    def __enter__(self):\n        self.is_open = True\n        return self\n"
    "    def __exit__(self, *raised):\n        self.is_open = False\n        return True\n"
)
ECHO = "def echo(*args, **named):\n    return args, named\n"


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        (ECHO, ["assert echo() == ((), {})", "assert echo(1, x=[2]) == ((1,), {'x': [2]})"]),
        (
            ECHO,
            [
                "import math",
                "values = (None, True, 0, -1, 1 << 40000, -(1 << 40000), 1e300, -0.0, 1 + 2j, 'ü')",
                "values += (b'\\0', '\\udc00', (), [], {}, set(), {1, 2}, frozenset({'a'}), int)",
                "assert echo(*values) == (values, {})",
                "assert [type(x) for x in echo(*values)[0]] == [type(x) for x in values]",
                "assert math.isnan(echo(math.nan)[0][0])",
                "assert echo(True)[0][0] is True and echo(None)[0][0] is None",
            ],
        ),
        (
            STACK,
            ["s = Stack()", "s.push(1)", "assert s == [1] and len(s) == 1", "assert s[0] == 1"],
        ),
        (STACK, ["s = Stack([2])", "assert s.pop() == 2", "assert not s", "assert s != [2]"]),
        (RECORDS, ["assert groups(['a', 'bc', 'd']) == {1: ['a', 'd'], 2: ['bc']}"]),
        (
            RECORDS,
            ["assert {1: ['a']} == groups(['a'])", "assert dict(groups(['a'])) == {1: ['a']}"],
        ),
        (
            RECORDS,
            ["p = Pair(1, 2)", "assert p == (1, 2) and p.x == 1", "x, y = p", "assert y == 2"],
        ),
        (RECORDS, ["assert [Pair(1, 2)] == [(1, 2)]", "assert Counter('aab') == {'a': 2, 'b': 1}"]),
        (RECORDS, ["assert list(deque([1, 2])) == [1, 2]", "assert 'a' in Counter('a')"]),
        (RECORDS, ["assert Point(1) == Point(1)", "assert Point(1) != Point(2)"]),
        (RECORDS, ["assert str(Point(1)) == repr(Point(1)) == 'Point(x=1)'"]),
        (
            NUMBERS,
            ["n = numbers()", "assert next(n) == 0 and next(n) == 1", "assert 5 in numbers()"],
        ),
        (
            NUMBERS,
            ["from itertools import islice", "assert list(islice(numbers(), 3)) == [0, 1, 2]"],
        ),
        (
            CHANGES,
            [
                "numbers, table, names = [2, 1], {1: 2}, set()",
                "assert change(numbers, table, names) is None",
                "assert numbers == [1, 2, []] and table == {} and names == {'z'}",
            ],
        ),
        (
            NODES,
            [
                "root = Node(1)\r\nroot.left = Node(2)\r\nroot.left.right = Node(3)",
                "assert height(root) == 3 and root.left.right.value == 3",
                "assert root.left is root.left and root.right is None",
            ],
        ),
        ("import sys", ["assert sys.getsizeof((1, 2)) > 0"]),
        (RECORDS, ["assert {Pair(1, 2)} == {(1, 2)} and {Pair(1, 2): 3}[1, 2] == 3"]),
        (RECORDS, ["p = Pair(2, 1)", "assert isinstance(p, tuple) and not isinstance(p, list)"]),
        (RECORDS, ["assert isinstance(p := Pair(2, 1), Pair) and not isinstance(p, Point)"]),
        (RECORDS, ["assert sorted([Pair(2, 1), Pair(1, 2)]) == [(1, 2), (2, 1)]"]),
        (RECORDS, ["assert Pair(1, 2) < (1, 3) and (1, 1) < Pair(1, 2) and Pair(1, 2) >= (1,)"]),
        (RECORDS, ["assert Pair(1, 2) + (3,) == (1, 2, 3) and (0,) + Pair(1, 2) == (0, 1, 2)"]),
        (RECORDS, ["p = Pair(1, 2)", "assert 2 in p and 3 not in p and p[::-1] == (2, 1)"]),
        (SPECIAL, ["assert Size.TWO == 2 and [5, 6, 7][Size.TWO] == 7 and Size.ONE + 1 == 2"]),
        (SPECIAL, ["assert list(range(Size.TWO)) == [0, 1] and int(Size.TWO) == -(-Size.TWO)"]),
        (SPECIAL, ["import math", "assert math.isclose(Ratio(0.1) + Ratio(0.2), 0.3)"]),
        (
            SPECIAL,
            [
                "assert abs(Ratio(2.5) - 2) < 1 and 2 - Ratio(1) == 1",
                "assert round(Ratio(2.6)) == 3",
            ],
        ),
        (SPECIAL, ["assert isinstance(Ratio(1), float) and float(Ratio(1)) == 1"]),
        (SPECIAL, ["w = Word('abc')", "assert w == 'abc' and 'b' in w and w + 'd' == 'abcd'"]),
        (SPECIAL, ["t = Table()", "t[0] = 1", "assert t == {0: 1}", "del t[0]", "assert not t"]),
        (SPECIAL, ["assert (Vector(1) + Vector(2)).x == 3 and Vector(1) < Vector(2)"]),
        (SPECIAL, ["assert len({Vector(1), Vector(1), Vector(2)}) == 2"]),
        (SPECIAL, ["with Door() as door:\n    assert door.is_open", "assert not door.is_open"]),
    ],
)
def test_tests_pass(program: str, tests: list[str], passes: Callable[..., bool]) -> None:
    assert passes(program, *tests)
    assert not passes(program, *tests, "assert False")


@pytest.mark.parametrize(
    ("program", "test"),
    [
        # Each of these would let the program answer what it is asked to compute.
        ("class A:\n    def __sub__(self, other): return 0\na = A()", "assert abs(a - 3) < 1"),
        ("class A:\n    def __lt__(self, other): return True\na = A()", "assert a < 3"),
        ("class A(float):\n    def __gt__(self, other): return True\na = A()", "assert a > 3"),
        ("class A:\n    def __contains__(self, x): return True\na = A()", "assert 3 in a"),
        ("class A(list):\n    def __len__(self): return 'x'\na = A()", "assert len(a) != 3"),
        ("class A:\n    def __bool__(self): raise ValueError\na = A()", "assert not a"),
        ("def a(f):\n    return f(2)", "assert a(lambda x: x) == 2"),
        ("a = 1", "assert b == 1"),
        (
            "class A(float):\n    def __float__(self): return 3.0\n"
            "    def __sub__(self, other): return 0\n    def __abs__(self): return 0\na = A()",
            "assert float(a) == 3 or abs(a - 3) < 1",
        ),
        (
            "import sys\nsys.modules['sandbox.program'].Objects.hashed = lambda *args: True\n"
            "class A:\n    pass\na = A()",
            "assert {a}",
        ),
        ("class A:\n    def __hash__(self): return 'x'\na = A()", "assert {a}"),
        ("class A:\n    def __len__(self): return -1\na = A()", "assert len(a)"),
        (SPECIAL, "with Door():\n    assert False"),
        (SPECIAL, "assert Vector(1) == 1 or Vector(1) + 1"),
        (
            "import os\ndef a(): os._exit(0)",
            "try:\n    a()\nexcept BaseException:\n    pass",
        ),
    ],
)
def test_tests_fail(program: str, test: str, passes: Callable[..., bool]) -> None:
    assert not passes(program, test)
