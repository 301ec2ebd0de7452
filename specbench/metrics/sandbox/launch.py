"""The caller's side of the sandbox: start a supervisor, send it the work, read its verdict."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from specbench.errors import RunError, UsageError
from specbench.metrics.sandbox.statements import broken, names_of, read_tests
from specbench.metrics.sandbox.wire import Gone, decode, encode, receive, send

STARTUP_SECONDS = 30.0  # a loaded machine may start Python slowly, which is not the program's fault
GRACE_SECONDS = 2.0  # for a supervisor to end a late program by itself
_TOKEN_BYTES = 16

# Without these a Python that was installed with its own shared libraries may not start.
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# -I: no environment, no user folders; -S: no installed packages, and a start-up of milliseconds.
_COMMAND = [sys.executable, "-I", "-S", *(["-B"] * sys.dont_write_bytecode), "-X", "utf8", "-c"]
_BOOT = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
_BOOT += "import sandbox.supervisor as supervisor; del sys.path[0]; supervisor.main()"


@dataclass(frozen=True)
class Limits:
    """What a program and, in a process of their own, its tests may use."""

    cpu_seconds: int = 8  # of each; MBPP has a reference solution (task 123) that takes 2 to 4
    wall_seconds: float = 16.0  # from the program's start to the end of its tests
    memory_bytes: int = 512 << 20  # address space of each


def judge(
    program: str, tests: tuple[str, ...], entry_point: str = "", limits: Limits | None = None
) -> tuple[bool, tuple[str, ...]]:
    """Run a program and its tests in processes of their own.

    What the tests, Python statements, do not define themselves is the program's. The entry point
    is the function that the program must define, where that is known.

    Returns:
        Whether the program passed, and the names of the layers that held around it.

    Raises:
        UsageError: The system is not POSIX, or there are no tests.
        RunError: No process could be started, or the tests are broken whatever the program is.
    """
    if os.name != "posix":
        raise UsageError("pass@1 needs Linux or macOS; choose tasks with another metric")
    limits = limits or Limits()
    needs = read_tests(tests, entry_point)
    token = secrets.token_bytes(_TOKEN_BYTES)
    try:
        start = encode((program, limits.cpu_seconds, limits.memory_bytes, limits.wall_seconds))
        order = encode((token, needs.text, needs.imports, names_of(needs, program)))
    except ValueError as error:
        raise RunError(f"this program or its tests are too long to be run: {error}") from error
    folder = None
    try:
        folder = mkdtemp(prefix="specbench-")
        os.chmod(folder, 0o755)  # for a supervisor that changes to another user
        with _start(folder) as process:
            try:
                return _converse(process, start, order, token, limits.wall_seconds)
            finally:
                # Before it is waited for, so that the group's id cannot have been given away.
                with suppress(ProcessLookupError, PermissionError):  # nothing but a zombie
                    os.killpg(process.pid, signal.SIGKILL)
    except OSError as error:
        raise RunError(f"cannot start a process for generated code: {error}") from error
    finally:
        if folder is not None:
            _remove(folder)


@cache
def layers() -> tuple[str, ...]:
    """Return the names of the layers that this system puts around a program; see ``judge``."""
    return judge("", ("pass",))[1]


def weakness() -> str | None:
    """Return one sentence on what a program can read here, or None if that is limited."""
    held = set(layers())
    if held & {"landlock", "user"}:
        return None
    what = "every file that you may read"
    if sys.platform == "linux" and "namespaces" not in held:
        what += " and, through /proc, the memory and environment of your processes"
    return f"this system lets the sandbox limit no reading: a program in it can read {what}"


def _start(folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_COMMAND, _BOOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=folder,
        env={name: os.environ[name] for name in _LIBRARY_PATHS if name in os.environ},
        start_new_session=True,
    )


def _converse(
    process: subprocess.Popen[bytes], start: bytes, order: bytes, token: bytes, wall_seconds: float
) -> tuple[bool, tuple[str, ...]]:
    assert process.stdin is not None and process.stdout is not None
    orders, verdicts = process.stdin.fileno(), process.stdout.fileno()
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        send(orders, start, deadline)
        held = decode(receive(verdicts, deadline))
    except Gone as error:
        message = f"the Python process for generated code does not start ({_fault(process)})"
        raise RunError(f"{message}; run it again") from error
    if isinstance(held, str):
        raise RunError(held)
    try:
        deadline = time.monotonic() + wall_seconds + GRACE_SECONDS
        send(orders, order, deadline)
        verdict = receive(verdicts, deadline)
    except Gone:
        return False, tuple(held)
    if verdict.startswith(token) and verdict != token:
        raise broken(verdict[_TOKEN_BYTES:].decode(errors="replace"))
    return verdict == token, tuple(held)


def _fault(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended unexpectedly, with the last line of its stderr."""
    assert process.stderr is not None
    try:
        status = f"exit status {process.wait(GRACE_SECONDS)}"
    except subprocess.TimeoutExpired:
        status = "no answer"
    os.set_blocking(process.stderr.fileno(), False)
    lines = (process.stderr.read(1 << 16) or b"").decode(errors="replace").split("\n")
    return ": ".join([status, *[line.strip() for line in lines if line.strip()][-1:]])


def _remove(folder: str) -> None:
    """Remove a folder; if it is not empty, with tools that work at any depth."""
    with suppress(OSError):
        os.rmdir(folder)
        return
    for tool in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        with suppress(OSError):
            subprocess.run([*tool, folder], stderr=subprocess.DEVNULL, check=False)
