"""pass@1: what counts as a pass, and that no program can harm or hold up its caller."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunError
from specbench.metrics import code
from specbench.metrics.code import pass_at_1, passes
from specbench.tasks.example import Example

TESTS = ("assert double(2) == 4", "assert double('a') == 'aa'")
RIGHT = "def double(x):\n    return x * 2\n"
WRONG = "def double(x):\n    return x\n"


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    passes.cache_clear()
    yield
    passes.cache_clear()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """Collect the processes that are started."""
    started = []
    popen = subprocess.Popen

    def record(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return started


@pytest.mark.parametrize(
    "program",
    [
        RIGHT,
        "from __future__ import annotations\n" + RIGHT,
        "import collections, dataclasses, functools, heapq, json, math, random, re, typing\n"
        + RIGHT,
        "from dataclasses import dataclass\n@dataclass\nclass Pair:\n    x: int\n" + RIGHT,
        RIGHT + "print('done' * 100_000)\n",
        RIGHT + "if __name__ == '__main__':\n    double(input())\n",
        "# \u00fcber\n" + RIGHT,
    ],
)
def test_right_programs_pass(program: str) -> None:
    assert pass_at_1(program, Example("e", "prompt", tests=TESTS)) == 1.0


@pytest.mark.parametrize(
    "program",
    [
        WRONG,
        "",
        "def double(x):",
        "def double(x)\n    return x * 2",
        " " + RIGHT,
        RIGHT + "raise SystemExit(0)",
        RIGHT + "import sys\nsys.exit(0)",
        RIGHT + "import os\nos._exit(0)",
        "def double(x):\n    raise SystemExit(0)",
        RIGHT + "raise KeyboardInterrupt",
        RIGHT + "input()",
        RIGHT + "import pytest",  # installed, but the program sees the standard library only
        "print('passed', '1', True)",
        WRONG + "import os\nfor fd in (1, 3, 4):\n    os.write(fd, b'x' * 16)",
        # Asserts are compiled on their own: neither text nor block can swallow them.
        WRONG + "rest = '''",
        WRONG + "if False:\\",
        "def double(x): return double(x)",
        "\udc00",
        "\0",
    ],
)
def test_other_programs_fail(program: str) -> None:
    assert not passes(program, TESTS)


@pytest.mark.parametrize(
    "patch",
    [
        "builtins.exec = lambda *args: None",
        "builtins.compile = lambda *args, **kwargs: compile('', '', 'exec')",
        "builtins.AssertionError = Warning",
        "os.write = os._exit = lambda *args: None",
        "builtins.len = lambda x: 4",
    ],
)
def test_patched_builtins_do_not_reach_the_asserts(patch: str) -> None:
    tests = (*TESTS, "assert len([]) == 0")
    assert passes(RIGHT + "import builtins, os\n" + patch, tests)
    assert not passes(WRONG + "import builtins, os\n" + patch, tests)


def test_every_assert_counts() -> None:
    assert not passes(RIGHT, (*TESTS, "assert double(1) == 3"))


def test_idle_program_is_killed_at_the_wall_time(
    monkeypatch: pytest.MonkeyPatch, processes: "list[subprocess.Popen[bytes]]"
) -> None:
    monkeypatch.setattr(code, "WALL_SECONDS", 0.2)
    start = time.perf_counter()
    assert not passes(RIGHT + "import time\ntime.sleep(60)", TESTS)
    assert time.perf_counter() - start < 30
    assert processes[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("program", ["while True:\n    pass", "x = 9**9**9"])
def test_busy_program_ends_by_its_processor_time(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "CPU_SECONDS", 1)
    monkeypatch.setattr(code, "WALL_SECONDS", 60.0)
    start = time.perf_counter()
    assert not passes(RIGHT + program, TESTS)
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("bomb", ["x = 'a' * 10**9", "x = 'a'\nwhile True:\n    x += x"])
def test_memory_bombs_fail(bomb: str) -> None:
    assert not passes(RIGHT + bomb, TESTS)


def test_memory_limit_is_what_stops_a_large_allocation() -> None:
    attempt = "try:\n    x = bytes(300 << 20)\nexcept MemoryError:\n    stopped = True"
    assert passes(attempt, ("assert stopped",))
    assert passes("x = bytes(100 << 20)", ("assert len(x)",))


@pytest.mark.parametrize(
    "deed",
    [
        "open({path!r}, 'w')",
        "open({path!r}, 'a').write('more')",
        "import pathlib; pathlib.Path({path!r}).write_text('other')",
        "import os; os.remove({path!r})",
        "import os; os.open({path!r}, os.O_RDWR)",
        "import os; os.fork()",
        "import os; os.system('true')",
        "import os; os.kill(os.getppid(), 0)",
        "import subprocess; subprocess.run(['true'])",
        "import shutil; shutil.rmtree({folder!r})",
        "import socket; socket.socket()",
        "import ctypes",
    ],
)
def test_files_processes_and_network_are_refused(deed: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    deed = deed.format(path=str(kept), folder=str(tmp_path))
    program = f"try:\n    {deed}\nexcept PermissionError:\n    refused = True"
    assert passes(program, ("assert refused",))
    assert kept.read_text() == "kept"


def test_program_sees_an_empty_folder_and_nothing_of_its_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECBENCH_SECRET", "hidden")
    monkeypatch.chdir(tmp_path)
    handle = os.open(tmp_path, os.O_RDONLY)
    os.dup2(handle, 200, inheritable=True)
    program = (
        "import os, sys\n"
        "here, listing, secret = os.getcwd(), os.listdir(), os.environ.get('SPECBENCH_SECRET')\n"
        "try:\n    os.fstat(200)\nexcept OSError:\n    closed = True\n"
        "session = os.getsid(0) == os.getpid()"
    )
    tests = (
        f"assert here != {str(tmp_path)!r} and listing == []",
        "assert secret is None",
        "assert closed",
        "assert session",
    )
    try:
        assert passes(program, tests)
    finally:
        os.close(handle)
        os.close(200)


def test_equal_programs_run_once(processes: "list[subprocess.Popen[bytes]]") -> None:
    assert [passes(RIGHT, TESTS), passes(RIGHT, TESTS), passes(RIGHT, TESTS[:1])] == [True] * 3
    assert len(processes) == 2


@pytest.mark.parametrize("attribute", ["_CHILD", "_COMMAND"])
def test_a_process_that_cannot_start_is_no_failed_program(
    attribute: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(code, attribute, missing if attribute == "_CHILD" else [str(missing)])
    with pytest.raises(RunError, match="process for generated code"):
        passes(RIGHT, TESTS)
