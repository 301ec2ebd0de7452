"""pass@1: whether a generated program passes its asserts, run in a process of its own.

The limits guard against accidents of generated code, such as endless loops, memory and stray files.
They are no security boundary: a program written to attack can get round them.
"""

from __future__ import annotations

import marshal
import os
import secrets
import select
import signal
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING

from specbench.errors import RunError, UsageError

if TYPE_CHECKING:
    from specbench.tasks.example import Example

CPU_SECONDS = 2
WALL_SECONDS = 4.0
MEMORY_BYTES = 256 << 20
STARTUP_SECONDS = 30.0  # a loaded machine may be slow to start Python; that is not the program's

# -I: no environment, no user folders; -S: no installed packages, and a start-up of milliseconds.
_COMMAND = [sys.executable, "-I", "-S", "-B", "-X", "utf8"]
_CHILD = Path(__file__).with_name("code_child.py")
_TOKEN_BYTES = 16


def pass_at_1(text: str, example: Example) -> float:
    """Return 1 where the program defines what the example's asserts demand, else 0.

    Args:
        text: Generated program, taken as it is.
        example: Its ``tests`` run after the program.

    Raises:
        UsageError: The system is not POSIX.
        RunError: The process that runs programs could not be started.
    """
    return float(passes(text, example.tests))


@lru_cache(maxsize=4096)
def passes(program: str, tests: tuple[str, ...]) -> bool:
    """Run a program and its asserts in a fresh, limited process; equal ones run only once.

    Exiting, whatever the status, is no pass, nor is anything printed: the verdict is a random token
    on a pipe that only the code around the program writes to.

    Raises:
        UsageError: The system is not POSIX.
        RunError: The process could not be started.
    """
    if os.name != "posix":
        raise UsageError("pass@1 needs Linux or macOS; choose tasks with another metric")
    ready, passed = secrets.token_bytes(_TOKEN_BYTES), secrets.token_bytes(_TOKEN_BYTES)
    order = marshal.dumps((ready, passed, program, tests, CPU_SECONDS, MEMORY_BYTES))
    try:
        with TemporaryDirectory(prefix="specbench-") as folder, TemporaryFile() as stdin:
            stdin.write(order)
            stdin.seek(0)
            return _run(folder, stdin, ready, passed)
    except OSError as error:
        raise RunError(f"cannot start a process for generated code: {error}") from error


def _run(folder: str, stdin: IO[bytes], ready: bytes, passed: bytes) -> bool:
    with subprocess.Popen(
        [*_COMMAND, str(_CHILD)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd=folder,
        env={},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            if _receive(process.stdout, STARTUP_SECONDS) != ready:
                raise RunError("the Python process for generated code does not start; run it again")
            return _receive(process.stdout, WALL_SECONDS) == passed
        finally:
            # Before it is waited for, so that the group's id cannot have been given away.
            with suppress(ProcessLookupError, PermissionError):  # nothing left but a zombie
                os.killpg(process.pid, signal.SIGKILL)


def _receive(pipe: IO[bytes], seconds: float) -> bytes:
    """Return what the child sends next: a token, or nothing when it ends or is late."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return os.read(pipe.fileno(), _TOKEN_BYTES) if poll.poll(seconds * 1000) else b""
