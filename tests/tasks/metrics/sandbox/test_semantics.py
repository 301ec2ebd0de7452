"""Tests see a program in another process as in plain Python, and it cannot forge results."""

import re
from collections.abc import Callable

import pytest

from specbench.errors import RunError, UsageError
from specbench.tasks.metrics.sandbox.statements import read_tests

IMPORTS = (
    "from collections import Counter, OrderedDict, defaultdict, deque, namedtuple\n"
    "from datetime import date, datetime, time, timedelta, timezone\n"
    "from decimal import Decimal\nfrom fractions import Fraction\nimport math, sys\n"
)

# Plain data returned by a program, and valid assertions about it.
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
    ("Counter('aab')", "v == {'a': 2, 'b': 1} == Counter('aba') and v.total() == 3"),
    ("OrderedDict(b=1, a=2)", "list(v.items()) == [('b', 1), ('a', 2)] and v == dict(a=2, b=1)"),
    ("defaultdict(int, {1: 2})", "v == {1: 2} and isinstance(v, dict) and v[3] == 0"),
    ("[Fraction(1, 2), {date(2020, 1, 2)}]", "v == [0.5, {date(2020, 1, 2)}]"),
    ("ValueError('x', 1)", "type(v) is ValueError and v.args == ('x', 1)"),
    ("(None, True, 0, 1 << 14000, -(1 << 14000), 1e300, -0.0, 1 + 2j)", "v[1] is True"),
    ("('ü', b'\\0', '\\udc00', (), [], {}, set(), {1, 2}, frozenset({'a'}), int)", "v[9] is int"),
    ("[math.nan, math.inf]", "math.isnan(v[0]) and v[1] == math.inf"),
]  # fmt: skip

# Containers passed by tests keep their identity; ``f`` is defined by the program.
ARGUMENTS = [
    ("def f(a): a.sort(); return a", "x = [2, 1]\nassert f(x) is x and x == [1, 2]"),
    ("def f(a): return [a, (a,)]", "x = []\ny = f(x)\nassert y[0] is x and y[1][0] is x"),
    ("def f(a): return a", "x = [1]\nf(x).append(2)\nassert x == [1, 2]"),
    ("def f(a): a.append(1)", "x = []\nf(a=x)\nassert x == [1]"),
    ("def f(a): a[0].append(1)", "row = []\nf((row,))\nassert row == [1]"),
    ("def f(a): a['x'][0].add(1)", "row = set()\nf({'x': [row]})\nassert row == {1}"),
    ("def f(a): return tuple(a)", "assert f({12, 13, 14, 15, 16}) == tuple({12, 13, 14, 15, 16})"),
    ("def f(a, b): return a is b", "x = []\nassert f(x, x) and not f(x, [])"),
    ("def f(a, b): a.append(1); return b", "x = []\nassert f(x, b=x) == [1]"),
    ("def f(a): a[0].append(1); return a", "x = [[]] * 2\nassert f(x) == [[1], [1]]"),
    ("def f(): return [[]] * 2", "x = f()\nx[0].append(1)\nassert x == [[1], [1]]"),
    ("def f(a): a.append(a); return a", "x = []\nassert f(x)[0] is x and f(x)[1] is x"),
    ("def f(a): return a[0] is a", "x = []\nx.append(x)\nassert f(x)"),
    ("def f(a):\n    a.append(1)\n    return 1 / 0", "x = []\ntry:\n    f(x)\nexcept "
     "ZeroDivisionError:\n    pass\nassert x == [1]"),
    ("def f(a): a[0] = [1]", "row = [0]\nx = [row]\nf(x)\nassert x == [[1]] and row == [0]"),
    ("def f(a): a[0] = True", "x = [1]\nf(x)\nassert x[0] is True"),
    ("def f(a): a[2] = a.pop(1)", "x = {1: 1, 3: 3}\nf(x)\nassert list(x) == [3, 2]"),
    ("def f(a): a[:1] = b'bc'", "x = bytearray(b'a')\nf(x)\nassert x == b'bc'"),
    ("def f(a): a.rotate(1); return a", "x = deque([1, 2], 2)\n"
     "assert f(x) is x and x == deque([2, 1]) and x.maxlen == 2"),
    ("def f(a): a.update('ab')", "x = Counter('a')\nf(x)\nassert x == Counter('aab')"),
    ("def f(a): a[1].append(2)", "x = defaultdict(list)\nf(x)\nassert x == {1: [2]} and not x[3]"),
    ("class A:\n    def f(self, a): a.clear()", "x = [1]\nA().f(x)\nassert x == []"),
    ("def f(*args, **named): return args, named", "assert f(1, x=[2]) == ((1,), {'x': [2]})"),
]  # fmt: skip

OBJECTS = (
    "from enum import IntEnum\nfrom dataclasses import dataclass\n"
    "class Stack(list):\n    def push(self, x):\n        self.append(x)\n"
    "Pair = namedtuple('Pair', 'x y')\n"
    "@dataclass\nclass Point:\n    x: int\n"
    "def groups(words):\n    found = defaultdict(lambda: [])\n"
    "    for word in words:\n        found[len(word)].append(word)\n    return found\n"
    "def numbers():\n    n = 0\n    while True:\n        yield n\n        n += 1\n"
    "class Node:\n    def __init__(self, value):\n        self.value = value\n"
    "        self.left = self.right = None\n"
    "def height(node):\n    return 1 + max(height(node.left), height(node.right)) if node else 0\n"
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
OF_OBJECTS = """
s = Stack(); s.push(1); assert s == [1] and len(s) == 1 and s[0] == 1
s = Stack([2]); assert s.pop() == 2 and not s and s != [2]
assert groups(['a', 'bc', 'd']) == {1: ['a', 'd'], 2: ['bc']} and groups([])[3] == []
assert {1: ['a']} == groups(['a']) and dict(groups(['a'])) == {1: ['a']}
p = Pair(1, 2); assert p == (1, 2) and p.x == 1; x, y = p; assert y == 2
assert [Pair(1, 2)] == [(1, 2)] and {Pair(1, 2)} == {(1, 2)} and {Pair(1, 2): 3}[1, 2] == 3
p = Pair(2, 1); assert isinstance(p, tuple) and not isinstance(p, list)
assert isinstance(p, Pair) and not isinstance(p, Point) and not isinstance((2, 1), Pair)
assert sorted([Pair(2, 1), Pair(1, 2)]) == [(1, 2), (2, 1)]
assert Pair(1, 2) < (1, 3) and (1, 1) < Pair(1, 2) and Pair(1, 2) >= (1,)
assert Pair(1, 2) + (3,) == (1, 2, 3) and (0,) + Pair(1, 2) == (0, 1, 2)
p = Pair(1, 2); assert 2 in p and 3 not in p and p[::-1] == (2, 1)
assert Point(1) == Point(1) and Point(1) != Point(2)
assert str(Point(1)) == repr(Point(1)) == 'Point(x=1)'
n = numbers(); assert next(n) == 0 and next(n) == 1 and 5 in numbers()
from itertools import islice; assert list(islice(numbers(), 3)) == [0, 1, 2]
root = Node(1)\r\nroot.left = Node(2)\r\nroot.left.right = Node(3)
assert height(root) == 3 and root.left.right.value == 3
assert root.left is root.left and root.right is None
assert Size.TWO == 2 and [5, 6, 7][Size.TWO] == 7 and Size.ONE + 1 == 2
assert list(range(Size.TWO)) == [0, 1] and int(Size.TWO) == -(-Size.TWO)
import math; assert math.isclose(Ratio(0.1) + Ratio(0.2), 0.3)
assert abs(Ratio(2.5) - 2) < 1 and 2 - Ratio(1) == 1 and round(Ratio(2.6)) == 3
assert isinstance(Ratio(1), float) and float(Ratio(1)) == 1
w = Word('abc'); assert w == 'abc' and 'bc' in w and w + 'd' == 'abcd'
t = Table(); t[0] = 1; assert t == {0: 1}; del t[0]; assert not t
root.note = 1; del root.note; assert not hasattr(root, 'note')
assert (Vector(1) + Vector(2)).x == 3 and Vector(1) < Vector(2)
assert len({Vector(1), Vector(1), Vector(2)}) == 2
with Door() as door: assert door.is_open
assert not door.is_open
"""

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
RAISED = [
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
    ("stop()", "RuntimeError", "type(e.__cause__) is StopIteration"),
    ("next(Ended())", "StopIteration", "not e.value"),
    ("odd.unknown", "AttributeError", "'unknown' in str(e)"),
]

# Each of these would let a program compute its own expected value, or hide a failure.
WRONG = [
    ("class A:\n    def __sub__(self, other): return 0\na = A()", "assert abs(a - 3) < 1"),
    ("class A:\n    def __lt__(self, other): return True\na = A()", "assert a < 3"),
    ("class A(float):\n    def __gt__(self, other): return True\na = A()", "assert a > 3"),
    ("class A:\n    def __contains__(self, x): return True\na = A()", "assert 3 in a"),
    ("class A:\n    def __iter__(self): return iter([self])\n"
     "    def __eq__(self, other): return True\na = A()", "assert 3 in a"),
    ("class A(list):\n    def __len__(self): return 'x'\na = A()", "assert len(a) != 3"),
    ("class A:\n    def __bool__(self): raise ValueError\na = A()", "assert not a"),
    ("def a(f):\n    return f(2)", "assert a(lambda x: x) == 2"),
    ("a = 1", "assert b == 1"),
    ("class A(float):\n    def __float__(self): return 3.0\n"
     "    def __sub__(self, other): return 0\n    def __abs__(self): return 0\na = A()",
     "assert float(a) == 3 or abs(a - 3) < 1"),
    ("import sys\nserver = sys.modules['sandbox.program']\n"
     "server.perform = lambda name, *args: True\nclass A:\n    pass\na = A()", "assert {a}"),
    ("class A:\n    def __hash__(self): return 'x'\na = A()", "assert {a}"),
    ("class A:\n    def __len__(self): return -1\na = A()", "assert len(a)"),
    ("class A:\n    def __neg__(self): return 3\na = A()", "assert -a"),
    (OBJECTS, "with Door():\n    assert False"),
    (OBJECTS, "assert Vector(1) == 1 or Vector(1) + 1"),
    *(
        (f"import os\ndef a(): {deed}", "try:\n    a()\nexcept BaseException:\n    pass")
        for deed in ("os._exit(0)", "os.close(4)", "os.write(4, bytes(9))", "os.write(4, b'~' * 9)")
    ),
    # It reaches only its own copies of the checker's code and modules.
    ("import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
     "        frame.f_globals['abs'] = frame.f_builtins['abs'] = lambda x: 0\n"
     "        frame = frame.f_back\n    return 0", "assert abs(f(2) - 4) < 1e-6"),
    ("math.isclose = lambda *args: True\ndef f(x): return 0", "assert math.isclose(f(2), 4)"),
    ("import gc\ndef f(x):\n    for value in gc.get_objects():\n"
     "        if value == [4]: value[0] = x\n    return [x]", "right = [4]\nassert f(2) == right"),
    ("class A(str):\n    __class__ = int\n    def __eq__(self, other): return True\na = A('4')",
     "assert isinstance(a, int) or a == 4"),
    ("class A:\n    def __hash__(self): return hash(4)\n    def __eq__(self, other): return True\n"
     "a = A()", "assert a in {4} or a in [4] or {4: True}[a]"),
    ("def f(a): return a", "x = [1]\nassert f(x) is not x"),
    ("def f(a): return {'x': a}", "x = [1]\nassert f(x)['x'] is not x"),
    ("def f(a): return a", "x = [1]\ny = f(x)\ny.append(2)\nassert x == [1]"),
    ("def f(a): a.append(1)", "x = []\nf(a=x)\nassert x == []"),
    ("def f(a): a[0].append(1)", "row = []\nf((row,))\nassert row == []"),
    ("def f(a): a.append(1)", "assert f(lambda: 1) is None"),
    # Ends the iteration of whatever calls it.
    ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 2 * x, [1, 2]))"),
    (ERRORS, "odd()"),
    (ERRORS + "leave()", "assert True"),
    (ERRORS + "raise KeyboardInterrupt", "assert True"),
]  # fmt: skip

Passes = Callable[..., bool]


def test_plain_data_keeps_its_value_and_type_both_ways(passes):
    program = "".join(
        f"def f{at}(): return {value}\n"
        f"def g{at}(v): return type(v) is type({value}) and repr(v) == repr({value})\n"
        for at, (value, _) in enumerate(VALUES)
    )
    tests = [
        f"v = f{at}()\nassert type(v) is type({value}) and repr(v) == repr({value})\n"
        f"assert v != 'other' and {seen}\nassert g{at}({value})"
        for at, (value, seen) in enumerate(VALUES)
    ]
    assert passes(IMPORTS + program, IMPORTS, *tests)
    assert not passes(IMPORTS + program, IMPORTS, *tests, "assert f0() != range(1, 9, 2)")


def test_arguments_keep_their_identity_and_objects_are_used_as_in_python(passes):
    def renamed(text, at):
        return re.sub(r"\b([fA])(?=[(:])", rf"\g<1>{at}", text)

    programs, tests = zip(*ARGUMENTS, strict=True)
    whole = "\n".join(renamed(program, at) for at, program in enumerate(programs))
    assert passes(whole, IMPORTS, *(renamed(test, at) for at, test in enumerate(tests)))
    assert passes(IMPORTS + OBJECTS, OF_OBJECTS)
    assert not passes(IMPORTS + OBJECTS, OF_OBJECTS, "assert Pair(1, 2) == (1, 3)")


def test_exceptions_keep_their_builtin_type_and_arguments(passes):
    tests = [
        f"try:\n    {deed}\nexcept {kind} as e:\n    assert {seen}\nelse:\n    assert False"
        for deed, kind, seen in RAISED
    ]
    through = (
        "def all(): return (yield from items())\nassert list(all()) == [1]\n"
        "def all():\n    assert (yield from items()) == 7\nassert list(all()) == [1]\n"
        "def all(): yield from Ended()\nassert list(all()) == []"
    )
    assert passes(ERRORS, *tests, through)
    assert not passes(ERRORS, tests[0].replace("ValueError)", "TypeError)"))


@pytest.mark.parametrize(("program", "test"), WRONG)
def test_wrong_programs_fail(program, test, passes):
    assert not passes(IMPORTS + program, test)


def test_names_that_tests_take_from_the_program():
    for tests, entry_point, names in [
        *(("assert f(x) == 1", "", "f x"), ("assert abs(f(1) - 3) < 1e-6", "", "f")),
        *(("assert abs(f(1) - 3) < 1e-6", "abs", "abs f"), ("x = f(1)\nassert x == 1", "", "f")),
        ("def check(candidate):\n    assert candidate(1) == one\ncheck(f)", "f", "f one"),
        ("def check(f):\n    assert f(1)\ncheck(f)", "f", "f"),
        ("import math as m\nassert m.isclose(f(1), 1)", "", "f"),
        ("from math import pi\nassert f(pi) == [y for y in g(pi)]", "", "f g"),
        ("def g():\n    global h\n    h = 1\nassert f(h) == g()", "", "f"),
        ("class A:\n    x = f(1)\nassert A.x", "", "f"),
        ("assert f(1) == sys.maxsize and math.isclose(f(2), 1)", "", "f"),
        ("assert queue(1) and queue.x", "", "queue"),
        ("assert queue.x", "queue", "queue"),
        ("assert stack.push(1)", "", "stack"),
    ]:
        needs = read_tests((tests,), entry_point)
        assert (needs.names, needs.shadowed) == (tuple(names.split()), ()), tests
    tests = (
        "import math\ntry:\n    import numpy\nexcept ImportError:\n    pass\n",
        "def check(candidate):\n    from os import path\n    assert candidate(sys.maxsize)\n",
    )
    assert read_tests(tests).imports == "import math\nfrom os import path\nimport sys"


def test_tests_have_their_own_builtins_and_modules(passes):
    program = "def half(x):\n    return 0.0\ndef abs(x):\n    return 0\ntuple = lambda x: ()\n"
    assert passes("def half(x):\n    return x / 2\n", "assert abs(half(3) - 1.5) < 1e-6")
    assert not passes(program, "assert abs(half(3) - 1.5) < 1e-6")
    assert not passes(program, "assert tuple([half(3)]) == tuple([1.5])")
    for definition, right, test in [
        ("class math:\n    isclose = lambda *args: True\n", "2.0", "math.isclose(f(), 2)"),
        ("class sys:\n    maxsize = 0\n", "2**63 - 1", "f() == sys.maxsize"),
    ]:
        assert passes(f"{definition}def f(): return {right}", f"assert {test}")
        assert not passes(f"{definition}def f(): return 0", f"assert {test}")
    # A tested function may have a builtin's name.
    test = "total = sum(10, 15)\nassert abs(total - 25) < 1"
    right = "def sum(a, b): return a + b\n"
    assert read_tests((test,)).shadowed == ("abs", "sum")
    assert passes(right, test) and passes(right, test, entry_point="sum")
    assert passes(right + "if 1:\n    abs = len\n", test)
    assert not passes("def sum(a, b): return 0\ndef abs(x): return 0\n", test)
    assert not passes("sum = lambda a, b: a + b", test)


@pytest.mark.parametrize("tests", [(), ("",), ("# nothing", "\n")])
def test_missing_tests_are_an_error(tests, passes):
    with pytest.raises(UsageError):
        passes("x = 1", *tests)


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        *(("assert f( == 1", "SyntaxError"), ("return f()", "'return' outside function")),
        *(("x = " + "(" * 500, "SyntaxError|MemoryError"), ("assert '\0'", "null bytes")),
        ("import missing_module\nassert f() == 1", "No module named 'missing_module'"),
        ("from math import missing", "cannot import name 'missing'"),
        ("def check(f):\n    import missing_module\ncheck(f)", "missing_module"),
    ],
)
def test_broken_tests_are_an_error(test, fault, passes):
    for program in ("def f(): return 1", "raise ImportError", "no program"):
        with pytest.raises(RunError, match=fault):
            passes(program, test)


def test_a_failing_import_fails_the_program(passes):
    assert not passes("import missing_module", "assert True")
    assert not passes("def f():\n    import missing_module", "f()")
    test = "try:\n    import missing_module\nexcept ImportError:\n    assert f() == 1"
    assert passes("def f(): return 1", test)
