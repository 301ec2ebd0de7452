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
ERRORS = (
    "class Odd(KeyError):\n    pass\n"
    "def fail(kind):\n    raise kind('no')\n"
    "def odd():\n    raise Odd('odd')\n"
    "def group():\n    raise ExceptionGroup('many', [ValueError(1)])\n"
    "def unicode():\n    '\\udc00'.encode()\n"
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
            ERRORS,
            ["try:\n    fail(ValueError)\nexcept ValueError as e:\n    assert str(e) == 'no'"],
        ),
        (ERRORS, ["try:\n    odd()\nexcept KeyError:\n    pass\nelse:\n    assert False"]),
        (ERRORS, ["try:\n    group()\nexcept Exception:\n    pass\nelse:\n    assert False"]),
        (ERRORS, ["try:\n    unicode()\nexcept UnicodeError:\n    pass\nelse:\n    assert False"]),
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
        ("def a(): raise SystemExit", "try:\n    a()\nexcept BaseException:\n    pass"),
        (
            "import os\ndef a(): os._exit(0)",
            "try:\n    a()\nexcept BaseException:\n    pass",
        ),
    ],
)
def test_tests_fail(program: str, test: str, passes: Callable[..., bool]) -> None:
    assert not passes(program, test)
