"""Lists and the like that tests hand to a program: each stays one and the same, as in Python."""

from collections.abc import Callable

import pytest

RIGHT = [
    ("def f(a): a.sort(); return a", "x = [2, 1]\nassert f(x) is x and x == [1, 2]"),
    ("def f(a): return [a, (a,)]", "x = []\ny = f(x)\nassert y[0] is x and y[1][0] is x"),
    ("def f(a): return a", "x = [1]\nf(x).append(2)\nassert x == [1, 2]"),
    ("def f(a): a.append(1)", "x = []\nf(a=x)\nassert x == [1]"),
    ("def f(a): a[0].append(1)", "row = []\nf((row,))\nassert row == [1]"),
    ("def f(a): a['x'][0].add(1)", "row = set()\nf({'x': [row]})\nassert row == {1}"),
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
    ("def f(a): a.rotate(1); return a", "from collections import deque\nx = deque([1, 2], 2)\n"
     "assert f(x) is x and x == deque([2, 1]) and x.maxlen == 2"),
    ("def f(a): a.update('ab')", "from collections import Counter\nx = Counter('a')\nf(x)\n"
     "assert x == Counter('aab')"),
    ("def f(a): a[1].append(2)", "from collections import defaultdict\nx = defaultdict(list)\n"
     "f(x)\nassert x == {1: [2]} and x[3] == []"),
    ("class A:\n    def f(self, a): a.clear()", "x = [1]\nA().f(x)\nassert x == []"),
]  # fmt: skip
WRONG = [
    ("def f(a): return a", "x = [1]\nassert f(x) is not x"),
    ("def f(a): return {'x': a}", "x = [1]\nassert f(x)['x'] is not x"),
    ("def f(a): return a", "x = [1]\ny = f(x)\ny.append(2)\nassert x == [1]"),
    ("def f(a): a.append(1)", "x = []\nf(a=x)\nassert x == []"),
    ("def f(a): a[0].append(1)", "row = []\nf((row,))\nassert row == []"),
    ("def f(g): g[0].append(1)", "row = [1]\nf([row])\nassert row == [1]"),
    ("def f(a):\n    a.append(1)\n    raise ValueError", "x = []\ntry:\n    f(x)\nexcept "
     "ValueError:\n    pass\nassert x == []"),
    ("def f(a): a.append(1)", "assert f(lambda: 1) is None"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "test"), RIGHT)
def test_tests_pass(program: str, test: str, passes: Callable[..., bool]) -> None:
    assert passes(program, test)


@pytest.mark.parametrize(("program", "test"), WRONG)
def test_tests_fail(program: str, test: str, passes: Callable[..., bool]) -> None:
    assert not passes(program, test)


@pytest.mark.parametrize(
    "changes", ["{0: (1, 2, 3)}", "{0: 1}", "{5: ()}", "{'x': ()}", "{0: ([], 1)}", "[()]"]
)
def test_changes_that_cannot_be_end_the_program(changes: str, passes: Callable[..., bool]) -> None:
    forged = (
        "import sys\nserver = sys.modules['sandbox.program']\n"
        "def f(a):\n    server.encode = lambda reply, *args: "
        f"encode((True, None, {changes}), *args)\n    return 1\nencode = server.encode\n"
    )
    assert not passes(forged, "try:\n    f({1: 2})\nexcept BaseException:\n    pass")
    honest = forged.replace(changes, "{0: (1, 3)}")
    assert passes(honest, "x = {1: 2}\nassert f(x) is None and x == {1: 3}")
