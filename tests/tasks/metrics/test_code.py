"""pass@1: extracting programs, passing, and errors that are not the program's fault."""

import ast
import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunError, UsageError
from specbench.tasks.dataset import DataOptions
from specbench.tasks.example import Example
from specbench.tasks.metrics.code import (
    fenced,
    helpers_of,
    pass_at_1,
    pass_at_k,
    passes,
    program_of,
)
from specbench.tasks.metrics.sandbox import launch
from specbench.tasks.metrics.sandbox.launch import Limits
from specbench.tasks.task import load_task

from .conftest import takes_less

TESTS = ("assert double(2) == 4", "assert double('a') == 'aa'")
RIGHT = "def double(x):\n    return x * 2\n"
WRONG = "def double(x):\n    return x\n"

PREFIX = (
    "from typing import List\n\n"
    "def twice(x):\n    return 2 * x\n\n"
    'def total(xs: List[int]) -> int:\n    """ Add up the doubles. """\n'
)
CHECK = ("def check(candidate):\n    assert candidate([1, 2]) == twice(3)\n", "check(total)")
CONTINUED = Example("e", PREFIX, tests=CHECK, code_prefix=PREFIX, entry_point="total")
PLAIN = Example("e", "prompt", tests=("assert total([1, 2]) == 6",))
BODY = "    return sum(twice(x) for x in xs)\n"
ANEW = "def total(xs: List[int]) -> int:\n" + BODY
WHOLE = "def total(xs):\n    return 2 * sum(xs)\n"
HANDFUL = Path(__file__).parents[2] / "data"


def answers(name: str) -> list[str]:
    text = (HANDFUL / "answers" / f"{name}.txt").read_text(encoding="utf-8")
    return text.split("\n===\n")[:-1]


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    passes.cache_clear()
    yield
    passes.cache_clear()


@pytest.fixture
def processes(monkeypatch) -> list["subprocess.Popen[bytes]"]:
    started = []
    popen = subprocess.Popen

    def record(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return started


def test_right_programs_pass():
    for program in (
        "from __future__ import annotations\n" + RIGHT,
        "import collections, functools, heapq, json, math, random, re, typing\n" + RIGHT,
        "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    x: int\n" + RIGHT,
        RIGHT + "print('done' * 100_000)\n",
        RIGHT + "if __name__ == '__main__':\n    double(input())\n",
        "# \u00fcber\n" + RIGHT,
    ):
        assert pass_at_1(program, Example("e", "prompt", tests=TESTS)) == 1.0, program
    assert not passes(program, (*TESTS, "assert double(1) == 3"))


def test_other_programs_fail():
    for program in (
        *(WRONG, "", "def double(x):", "def double(x)\n    return x * 2", " " + RIGHT),
        RIGHT + "input()",
        RIGHT + "import pytest",  # installed, but programs have only the standard library
        # Asserts are compiled separately, so that no open string or block can swallow them.
        *(WRONG + "rest = '''", WRONG + "if False:\\", "\udc00", "\0"),
    ):
        assert not passes(program, TESTS), program


def test_idle_programs_and_busy_tests_end_in_time_and_memory_has_a_limit(processes):
    """In far less than an hour, which the idle one waits, and the time that the busy ones have."""
    start = time.monotonic()
    idle = RIGHT + "import time\ntime.sleep(3600)"
    assert not passes(idle, TESTS, limits=Limits(wall_seconds=0.2))
    limits = Limits(cpu_seconds=1, wall_seconds=3600.0)
    assert not passes(RIGHT, ("while True:\n    pass",), limits=limits)
    assert not passes(RIGHT + "x = 9**9**9", TESTS, limits=limits)
    assert time.monotonic() - start < 1800
    assert None not in [process.returncode for process in processes]
    attempt = "try:\n    x = bytes(600 << 20)\nexcept MemoryError:\n    stopped = True"
    assert passes(attempt, ("assert stopped",))
    assert not passes(attempt, ("assert stopped",), limits=Limits(memory_bytes=900 << 20))


def test_files_processes_and_network_are_refused(tmp_path):
    file = tmp_path / "kept.txt"
    file.write_text("kept")
    deeds = [
        f"open({str(file)!r}, 'w')",
        f"open({str(file)!r}, 'a').write('more')",
        f"import pathlib; pathlib.Path({str(file)!r}).write_text('other')",
        *(f"import os; os.remove({str(file)!r})", f"import os; os.open({str(file)!r}, os.O_RDWR)"),
        *("import os; os.fork()", "import os; os.system('true')"),
        *("import os; os.kill(os.getppid(), 0)", "import subprocess; subprocess.run(['true'])"),
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        "import socket; socket.socket()",
        "import ctypes; ctypes.CDLL(None)",
    ]
    attempt = "try:\n    {}\nexcept PermissionError:\n    refused.append({!r})\n"
    program = "refused = []\n" + "".join(attempt.format(deed, deed) for deed in deeds)
    assert passes(program, (f"assert refused == {deeds!r}",)) and file.read_text() == "kept"


def test_equal_programs_run_once(processes):
    assert [passes(RIGHT, TESTS), passes(RIGHT, TESTS), passes(RIGHT, TESTS[:1])] == [True] * 3
    assert len(processes) == 2


def test_a_process_that_does_not_start_is_an_error(monkeypatch):
    for python in ("/missing/python", "/bin/false"):
        monkeypatch.setattr(launch, "_COMMAND", [python, *launch._COMMAND[1:]])
        with pytest.raises(RunError):
            passes(RIGHT, TESTS)
    monkeypatch.undo()
    for boot, status in [
        ("raise SystemExit(0)", r"\(exit status 0\)"),
        ("import missing", r"\(exit status 1: ModuleNotFoundError: No module named 'missing'\)"),
    ]:
        monkeypatch.setattr(launch, "_BOOT", boot)
        with pytest.raises(RunError, match=status):
            passes(RIGHT, TESTS)


def test_python_finds_its_libraries_and_the_program_no_environment(monkeypatch, tmp_path):
    python = tmp_path / "python"
    check = 'test "$LD_LIBRARY_PATH$SECRET" = /opt/lib || { echo no libpython >&2; exit 127; }'
    python.write_text(f'#!/bin/sh\n{check}\nexec {launch._COMMAND[0]} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(launch, "_COMMAND", [str(python), *launch._COMMAND[1:]])
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with pytest.raises(RunError, match=r"\(exit status 127: no libpython\)"):
        passes(RIGHT, TESTS)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    assert passes("import os\nseen = dict(os.environ)", ("assert seen == {}",))


def test_answers_are_right_fail_or_are_refused(monkeypatch):
    odd = (BODY.replace("\n", "\r\n"), f"```py\r\n{ANEW}```\r\n", "\ufeff" + ANEW)
    for text in (*answers("right"), *odd):
        ast.parse(program_of(text, CONTINUED))
        assert pass_at_1(text, CONTINUED) == 1.0, text
        assert pass_at_1(text.replace("sum(", "max("), CONTINUED) == 0.0, text
    for text in ("", "    pass", "```python\n```", "I cannot.", "```", "\0", "\udc00"):
        assert pass_at_1(text, CONTINUED) == 0.0
    for text in (WHOLE, f"```python\n{WHOLE}```", f"So:\n```\n{WHOLE}"):
        assert program_of(text, PLAIN) == WHOLE
    assert pass_at_1(WHOLE, PLAIN) == 1.0
    for text in ("", "x = 1", WHOLE, WHOLE + "rest = (", "no program"):
        assert program_of(text, PLAIN) == text
    with pytest.raises(RunError):
        passes("#" * (9 << 20), TESTS)
    monkeypatch.setattr(launch.os, "name", "nt")
    with pytest.raises(UsageError):
        passes(RIGHT, TESTS)


def test_the_right_code_block_is_chosen():
    for text, block in (
        ("```\nx = 1\n```\n```\ndef f(): pass\n```", "def f(): pass\n"),
        ("```\nx =\n```\n```\nx = 2\n```\n```\nx = 3\n```", "x = 2\n"),
        ("```\nno good\n```\n```\nnot better either\n```", "not better either\n"),
        ("```\n\n```\n```\nx = 2\n```", "x = 2\n"),
        ("x = '```'", "x = '```'"),
        ("```\ndef f(): pass\n```\n```\ndef total(): pass\n```", "def total(): pass\n"),
        (f"{WHOLE}\nUse it so:\n```\ntotal([1])\n```", WHOLE + "\n"),
        ("```\nx = 1\n", "x = 1\n"),
        ("```\n'''\n~~~\n'''\n````\nz", "'''\n~~~\n'''\n"),
    ):
        assert fenced(text, PLAIN) == block


def test_a_program_cannot_replace_the_helpers_of_its_tests():
    assert pass_at_1("    return 0\n\ndef twice(x):\n    return 0\n", CONTINUED) == 0.0
    (helpers,) = helpers_of(CONTINUED)
    assert "def twice" in helpers and "def total" not in helpers
    for prefix in ("", "import math\n\ndef total(xs):\n", "def total(xs):\n    ''''''\n"):
        assert helpers_of(Example("e", "", code_prefix=prefix, entry_point="total")) == ()


def test_malformed_and_long_texts_do_not_harm_the_caller():
    # It parses in the function that it continues, where such an import is an error all the same.
    assert pass_at_1("    from math import *\n    return 3\n", CONTINUED) == 0
    for part in ("(", "-", "x.", "not ", "[", "lambda: ", "1 if 1 else ", "f(", "{"):
        text = "x = " + part * 50_000
        assert program_of(text, CONTINUED) in (PREFIX + text, PREFIX)
    for text in (
        *("```" + " " * 200_000 + "x y\n```" * 3, "```\n" * 20_000, "a ```b\nc``` " * 10_000),
        *("> " * 20_000 + "```", "- " * 20_000 + "```", "x = 1\n" * 2000 + "def f(:\n" * 2000),
        "def total(xs):\n  return {\n" + "    'a': 1,\n" * 4000,
        "This is prose, not code\n" * 4000,
        "if a:\n pass\n" + "elif a:\n pass\n" * 5000,
        "try:\n" + "    x = 1\n" * 1000,
        "```python" + " a={}" * 24 + " x\nprint(1)\n```",
    ):
        # It takes much longer if each line is parsed anew.
        assert takes_less(partial(program_of, text, CONTINUED), 3)


def test_the_longest_prefix_that_parses_is_kept():
    for rest, parsed in (
        ("x = 1\ny = (1,\n2\nz = 3\n", "x = 1\n"),
        ("x = 1\ny = '''a\nb\n", "x = 1\n"),
        ("x = 1\x0c\ny = 1\u2028 2\nz = )\n", "x = 1\x0c\n"),
        *(("try:\n    x = 1\n    y = 2\n", ""), ("x = 1\rdef f(:\r", "x = 1\r")),
        *(("@wraps\nx = 1\n", ""), ("x = 1\n  y = 2\n", "x = 1\n")),
    ):
        assert program_of(BODY + rest, CONTINUED) == PREFIX + BODY + parsed


# Every reference solution passes its tests, and no test passes without it.

ALL = os.environ.get("SPECBENCH_TEST_DATA", "")
needs_all = pytest.mark.skipif(not ALL, reason="SPECBENCH_TEST_DATA is not set")


def examples(folder: Path, task: str) -> list[Example]:
    problems = load_task(task, DataOptions(folder=folder)).examples("test", None)
    assert problems
    return problems


def failing(problems: list[Example]) -> list[str]:
    return [example.id for example in problems if not pass_at_1(example.reference or "", example)]


@pytest.mark.parametrize("task", ["mbpp", "humaneval"])
def test_a_handful_of_references_pass(task):
    assert failing(examples(HANDFUL, task)) == []


@needs_all
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_all_references_of_mbpp_pass_the_challenge_tests_too(split, tmp_path):
    text = load_task("mbpp").path.read_text()
    for old, new in (
        ('"{test_list}"]', '"{test_list}", "{challenge_test_list}"]'),
        ('train = "train"\n', ""),
        ('test = "test"', f'test = "{split}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mbpp.toml").write_text(text)
    assert failing(examples(Path(ALL), str(tmp_path / "mbpp.toml"))) == []


@needs_all
def test_all_references_of_humaneval_pass_and_none_passes_the_tests_of_another():
    problems = examples(Path(ALL), "humaneval")
    assert failing(problems) == []
    for example, other in pairwise(problems[::5]):
        assert not pass_at_1(other.reference or "", example), example.id


@pytest.mark.parametrize("programs", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(programs):
    for passed in range(programs + 1):
        results = [True] * passed + [False] * (programs - passed)
        for k in range(1, programs + 1):
            subsets = list(combinations(results, k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(programs, passed, k) == pytest.approx(share, abs=1e-12)
    assert pass_at_k(1000, 1, 100) == pytest.approx(0.1, abs=1e-12)
    assert pass_at_k(1000, 0, 100) == 0


def test_what_servers_and_models_do_to_a_right_program_does_not_matter():
    for text in answers("changed"):
        assert pass_at_1(text, CONTINUED) == 1.0, text
        wrong = text.replace("sum(", "len(").replace("+= twice(x)", "+= 1")
        assert pass_at_1(wrong, CONTINUED) == 0.0, wrong
