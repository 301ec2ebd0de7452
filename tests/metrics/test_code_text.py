"""Finding the program in what a model wrote."""

import ast
import time

import pytest

from specbench.example import Example
from specbench.metrics.code import pass_at_1
from specbench.metrics.code_text import fenced, helpers_of, program_of

PREFIX = (
    "from typing import List\n\n"
    "def twice(x):\n    return 2 * x\n\n"
    'def total(xs: List[int]) -> int:\n    """ Add up the doubles. """\n'
)
TESTS = ("def check(candidate):\n    assert candidate([1, 2]) == twice(3)\n", "check(total)")
CONTINUED = Example("e", PREFIX, tests=TESTS, code_prefix=PREFIX, entry_point="total")
PLAIN = Example("e", "prompt", tests=("assert total([1, 2]) == 6",))
BODY = "    return sum(twice(x) for x in xs)\n"
ANEW = "def total(xs: List[int]) -> int:\n" + BODY
WHOLE = "def total(xs):\n    return 2 * sum(xs)\n"


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        ANEW,
        "\n" + BODY,
        BODY.rstrip(),
        BODY.replace("\n", "\r\n"),
        BODY + "\n\nprint('more')\n",
        BODY + "\ndef other():\n    pass\n\ndef unfinished(x",
        BODY + '\n"""\nThis adds the doubles up',
        BODY + "\nThis function adds the doubles up.\n",
        f"```python\n{ANEW}```",
        f"Sure! Here it is:\n\n```python\n{ANEW}```\n\nIt doubles all.",
        f"```python\n{BODY}```",
        f"```\n{ANEW}\n```",
        f"```py\r\n{ANEW}```\r\n",
        f"  ```python\n{ANEW}  ```",
        f"```python\n{ANEW}",
        f"```python\n{ANEW}\nfor x in range(",
        f"```python\ntotal([1])\n```\nwith\n```python\n{ANEW}```",
        f"```bash\npip install typing\n```\n```python\n{ANEW}```",
        f"{ANEW}```\nThis is the function.",
        f"{BODY}```\nThis is the function.\n```python\ntotal([1])\n```\n",
        f"Here you are.\n```python\n{ANEW}```\nUse it so:\n```python\nprint(total([1]))\n```",
    ],
)
def test_continuations_and_answers_are_right(text: str) -> None:
    ast.parse(program_of(text, CONTINUED))
    assert pass_at_1(text, CONTINUED) == 1.0
    assert pass_at_1(text.replace("sum(", "max("), CONTINUED) == 0.0


@pytest.mark.parametrize(
    "text", ["", "    pass", "```python\n```", "I cannot.", "```", "\0", "\udc00"]
)
def test_nothing_useful_is_wrong(text: str) -> None:
    assert pass_at_1(text, CONTINUED) == 0.0


@pytest.mark.parametrize("text", [WHOLE, f"```python\n{WHOLE}```", f"So:\n```\n{WHOLE}"])
def test_programs_of_their_own_need_no_entry_point(text: str) -> None:
    assert program_of(text, PLAIN) == WHOLE
    assert pass_at_1(text, PLAIN) == 1.0


@pytest.mark.parametrize("text", ["", "x = 1", WHOLE, WHOLE + "rest = (", "no program"])
def test_text_without_fence_and_entry_point_is_kept(text: str) -> None:
    assert program_of(text, PLAIN) == text


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("```\nx = 1\n```\n```\ndef f(): pass\n```", "def f(): pass\n"),
        ("```\nx =\n```\n```\nx = 2\n```\n```\nx = 3\n```", "x = 2\n"),
        ("```\nno good\n```\n```\nnot better either\n```", "not better either\n"),
        ("```\n\n```\n```\nx = 2\n```", "x = 2\n"),
        ("x = '```'", "x = '```'"),
    ],
)
def test_which_block_is_taken(text: str, block: str) -> None:
    assert fenced(text, PLAIN) == block


def test_a_program_cannot_replace_the_helpers_of_its_tests() -> None:
    cheat = "    return 0\n\ndef twice(x):\n    return 0\n"
    assert pass_at_1(cheat, CONTINUED) == 0.0
    (helpers,) = helpers_of(CONTINUED)
    assert "def twice" in helpers and "def total" not in helpers


@pytest.mark.parametrize(
    "prefix", ["", "import math\n\ndef total(xs):\n", "def total(xs):\n    ''''''\n"]
)
def test_prefix_without_helpers_gives_none(prefix: str) -> None:
    assert helpers_of(Example("e", "", code_prefix=prefix, entry_point="total")) == ()


@pytest.mark.parametrize(
    "part", ["(", "-", "x.", "not ", "[", "lambda: ", "1 if 1 else ", "f(", "{"]
)
def test_absurd_texts_do_not_harm_the_caller(part: str) -> None:
    text = "x = " + part * 100_000
    assert program_of(text, CONTINUED) in (PREFIX + text, PREFIX)


@pytest.mark.parametrize(
    "text",
    [
        "```" + " " * 200_000 + "x y\n```" * 3,
        "x = 1\n" * 2000 + "def f(:\n" * 2000,
        "def total(xs):\n  return {\n" + "    'a': 1,\n" * 4000,
        "This is prose, not code\n" * 4000,
        "if a:\n pass\n" + "elif a:\n pass\n" * 5000,
        "try:\n" + "    x = 1\n" * 3000,
    ],
)
def test_long_texts_take_no_longer_than_their_length(text: str) -> None:
    start = time.process_time()
    program_of(text, CONTINUED)
    assert time.process_time() - start < 3  # much longer where each line is parsed anew


@pytest.mark.parametrize(
    ("rest", "kept"),
    [
        ("x = 1\ny = (1,\n2\nz = 3\n", "x = 1\n"),
        ("x = 1\ny = '''a\nb\n", "x = 1\n"),
        ("x = 1\x0c\ny = 1\u2028 2\nz = )\n", "x = 1\x0c\n"),
        ("try:\n    x = 1\n    y = 2\n", ""),
        ("x = 1\rdef f(:\r", "x = 1\r"),
        ("@wraps\nx = 1\n", ""),
        ("x = 1\n  y = 2\n", "x = 1\n"),
    ],
)
def test_the_longest_beginning_that_parses_is_kept(rest: str, kept: str) -> None:
    assert program_of(BODY + rest, CONTINUED) == PREFIX + BODY + kept
