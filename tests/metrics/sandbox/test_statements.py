"""What tests take from a program, and tests that are at fault themselves."""

from collections.abc import Callable

import pytest

from specbench.errors import RunError, UsageError
from specbench.metrics.sandbox.statements import understood


@pytest.mark.parametrize(
    ("tests", "entry_point", "names"),
    [
        ("assert f(x) == 1", "", ["f", "x"]),
        ("assert abs(f(1) - 3) < 1e-6", "", ["f"]),
        ("assert abs(f(1) - 3) < 1e-6", "abs", ["abs", "f"]),
        ("x = f(1)\nassert x == 1", "", ["f"]),
        ("def check(candidate):\n    assert candidate(1) == one\ncheck(f)", "f", ["f", "one"]),
        ("def check(f):\n    assert f(1)\ncheck(f)", "f", ["f"]),
        ("import math as m\nassert m.isclose(f(1), 1)", "", ["f"]),
        ("from math import pi\nassert f(pi) == [y for y in g(pi)]", "", ["f", "g"]),
        ("def g():\n    global h\n    h = 1\nassert f(h) == g()", "", ["f"]),
        ("class A:\n    x = f(1)\nassert A.x", "", ["f"]),
        ("assert f(1) == sys.maxsize and math.isclose(f(2), 1)", "", ["f"]),
        ("assert queue(1) and queue.x", "", ["queue"]),
        ("assert queue.x", "queue", ["queue"]),
        ("assert stack.push(1)", "", ["stack"]),
    ],
)
def test_names_of_the_program(tests: str, entry_point: str, names: list[str]) -> None:
    found = understood((tests,), entry_point)
    assert (found.names, found.shadowed) == (names, [])


def test_modules_and_imports_of_the_tests() -> None:
    tests = (
        "import math\ntry:\n    import numpy\nexcept ImportError:\n    pass\n",
        "def check(candidate):\n    from os import path\n    assert candidate(sys.maxsize)\n",
    )
    found = understood(tests)
    assert found.imports == "import math\nfrom os import path\nimport sys"


def test_a_program_may_define_one_builtin_where_there_is_nothing_else(
    passes: Callable[..., bool],
) -> None:
    test = "total = sum(10, 15)\nassert abs(total - 25) < 1"
    assert understood((test,)).shadowed == ["abs", "sum"]
    right = "def sum(a, b): return a + b\n"
    assert passes(right, test)
    assert passes(right + "if 1:\n    abs = len\n", test)
    assert not passes("def sum(a, b): return 0\ndef abs(x): return 0\n", test)
    assert not passes("sum = lambda a, b: a + b", test)


@pytest.mark.parametrize(
    ("own", "right", "test"),
    [
        ("class math:\n    isclose = lambda *args: True\n", "2.0", "math.isclose(f(), 2)"),
        ("class sys:\n    maxsize = 0\n", "2**63 - 1", "f() == sys.maxsize"),
    ],
)
def test_modules_are_the_tests_own(
    own: str, right: str, test: str, passes: Callable[..., bool]
) -> None:
    assert passes(f"{own}def f(): return {right}", f"assert {test}")
    assert not passes(f"{own}def f(): return 0", f"assert {test}")


@pytest.mark.parametrize("tests", [(), ("",), ("# nothing", "\n")])
def test_no_tests_are_no_pass(tests: tuple[str, ...], passes: Callable[..., bool]) -> None:
    with pytest.raises(UsageError, match="has no tests"):
        passes("x = 1", *tests)


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("assert f( == 1", "SyntaxError"),
        ("return f()", "'return' outside function"),
        ("x = " + "(" * 500, "SyntaxError|MemoryError"),
        ("assert '\0'", "null bytes"),
        ("import missing_module\nassert f() == 1", "No module named 'missing_module'"),
        ("from math import missing", "cannot import name 'missing'"),
        ("def check(f):\n    import missing_module\ncheck(f)", "missing_module"),
    ],
)
@pytest.mark.parametrize("program", ["def f(): return 1", "raise ImportError", "no program"])
def test_broken_tests_are_no_verdict(
    test: str, fault: str, program: str, passes: Callable[..., bool]
) -> None:
    with pytest.raises(RunError, match=rf"the tests of the example are broken: .*({fault})"):
        passes(program, test)


def test_what_a_program_cannot_import_is_its_own_fault(passes: Callable[..., bool]) -> None:
    assert not passes("import missing_module", "assert True")
    assert not passes("def f():\n    import missing_module", "f()")
    test = "try:\n    import missing_module\nexcept ImportError:\n    assert f() == 1"
    assert passes("def f(): return 1", test)
