"""pass@1: what counts as a pass, and that no program can harm or hold up its caller."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.metrics.code import pass_at_1, passes
from specbench.metrics.sandbox import launch
from specbench.metrics.sandbox.launch import Limits

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
    processes: "list[subprocess.Popen[bytes]]",
) -> None:
    start = time.perf_counter()
    limits = Limits(wall_seconds=0.2)
    assert not passes(RIGHT + "import time\ntime.sleep(60)", TESTS, limits=limits)
    assert time.perf_counter() - start < 30
    assert processes[0].returncode is not None


@pytest.mark.parametrize("program", ["while True:\n    pass", "x = 9**9**9"])
def test_busy_program_ends_by_its_processor_time(program: str) -> None:
    start = time.perf_counter()
    assert not passes(RIGHT + program, TESTS, limits=Limits(cpu_seconds=1, wall_seconds=60.0))
    assert time.perf_counter() - start < 30


def test_busy_tests_end_by_their_processor_time() -> None:
    start = time.perf_counter()
    limits = Limits(cpu_seconds=1, wall_seconds=60.0)
    assert not passes(RIGHT, ("while True:\n    pass",), limits=limits)
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("bomb", ["x = 'a' * 10**9", "x = 'a'\nwhile True:\n    x += x"])
def test_memory_bombs_fail(bomb: str) -> None:
    assert not passes(RIGHT + bomb, TESTS)


def test_memory_limit_is_what_stops_a_large_allocation() -> None:
    attempt = "try:\n    x = bytes(600 << 20)\nexcept MemoryError:\n    stopped = True"
    assert passes(attempt, ("assert stopped",))
    assert not passes(attempt, ("assert stopped",), limits=Limits(memory_bytes=900 << 20))


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
        "import ctypes; ctypes.CDLL(None)",
    ],
)
def test_files_processes_and_network_are_refused(deed: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    deed = deed.format(path=str(kept), folder=str(tmp_path))
    program = f"try:\n    {deed}\nexcept PermissionError:\n    refused = True"
    assert passes(program, ("assert refused",))
    assert kept.read_text() == "kept"


def test_equal_programs_run_once(processes: "list[subprocess.Popen[bytes]]") -> None:
    assert [passes(RIGHT, TESTS), passes(RIGHT, TESTS), passes(RIGHT, TESTS[:1])] == [True] * 3
    assert len(processes) == 2


@pytest.mark.parametrize("python", ["/missing/python", "/bin/false"])
def test_a_process_that_cannot_start_is_no_failed_program(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_COMMAND", [python, *launch._COMMAND[1:]])
    with pytest.raises(RunError, match="process for generated code"):
        passes(RIGHT, TESTS)


@pytest.mark.parametrize(
    ("boot", "says"),
    [
        ("raise SystemExit(0)", r"does not start \(exit status 0\); run it again"),
        ("import missing", r"\(exit status 1: ModuleNotFoundError: No module named 'missing'\)"),
    ],
)
def test_a_supervisor_that_breaks_before_the_program_runs_is_no_failed_program(
    boot: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_BOOT", boot)
    with pytest.raises(RunError, match=says):
        passes(RIGHT, TESTS)


def test_python_finds_its_libraries_and_the_program_no_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_a_program_that_is_too_long_is_refused() -> None:
    with pytest.raises(RunError, match="too long"):
        passes("#" * (9 << 20), TESTS)


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.os, "name", "nt")
    with pytest.raises(UsageError, match="needs Linux or macOS"):
        passes(RIGHT, TESTS)
