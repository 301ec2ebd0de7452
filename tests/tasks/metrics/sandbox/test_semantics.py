"""Tests see a program in another process as in plain Python, and it cannot forge results."""

import re
from collections.abc import Callable

import pytest

from specbench.errors import RunError, UsageError
from specbench.tasks.metrics.sandbox.statements import read_tests

from .conftest import lines_of, text_of, with_tests

IMPORTS = (
    "from collections import Counter, OrderedDict, defaultdict, deque, namedtuple\n"
    "from datetime import date, datetime, time, timedelta, timezone\n"
    "from decimal import Decimal\nfrom fractions import Fraction\nimport math, sys\n"
)

# Plain data returned by a program, and valid assertions about it.
VALUES = lines_of("values.tsv")
# Containers passed by tests keep their identity; ``f`` is defined by the program.
ARGUMENTS = with_tests("arguments.txt")
OBJECTS, ERRORS = text_of("objects.txt"), text_of("errors.txt")
RAISED = lines_of("raised.tsv")  # a deed, the kind of its error, and what is seen of it
OF_OBJECTS = text_of("of_objects.txt").replace(r"\r\n", "\r\n")
# Each of these would let a program compute its own expected value, or hide a failure.
WRONG = [
    *with_tests("wrong.txt"),
    *(
        (OBJECTS, test)
        for test in ("with Door():\n    assert False", "assert Vector(1) == 1 or Vector(1) + 1")
    ),
    *((ERRORS, "odd()"), (ERRORS + "leave()", "assert True")),
    (ERRORS + "raise KeyboardInterrupt", "assert True"),
]


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
