"""The caller's side of the sandbox: start a supervisor, send the program, read the verdict."""

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

from specbench.errors import RunError, require
from specbench.tasks.metrics.sandbox.statements import broken, names_of, read_tests
from specbench.tasks.metrics.sandbox.wire import Gone, decode, encode, receive, send

STARTUP_SECONDS = 30.0  # generous, since Python may start slowly on a loaded machine
GRACE_SECONDS = 2.0  # for the supervisor to end a late program itself
_TOKEN_BYTES = 16

# A Python installed with its own shared libraries may need these to start.
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# -I: no environment, no user folders; -S: no installed packages, and a fast start.
_COMMAND = [sys.executable, "-I", "-S", *(["-B"] * sys.dont_write_bytecode), "-X", "utf8", "-c"]
_BOOT = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
_BOOT += "import sandbox.supervisor as supervisor; del sys.path[0]; supervisor.main()"


@dataclass(frozen=True)
class Limits:
    """Resource limits of a program and, separately, of the process with its tests."""

    cpu_seconds: int = 8  # of each; a reference solution in MBPP (task 123) takes 2 to 4
    wall_seconds: float = 16.0  # from the program's start to the end of its tests
    memory_bytes: int = 512 << 20  # address space of each


def judge(
    program: str, tests: tuple[str, ...], entry_point: str = "", limits: Limits | None = None
) -> tuple[bool, tuple[str, ...]]:
    """Run a program and its tests in separate processes.

    The tests are Python statements; names that they do not define come from the program. The entry
    point, if known, is the function that the program must define. Return whether the program
    passed, and the names of the layers in force.
    """
    require(os.name == "posix", "pass@1 needs Linux or macOS: choose tasks with another metric")
    limits = limits or Limits()
    needs = read_tests(tests, entry_point)
    token = secrets.token_bytes(_TOKEN_BYTES)
    try:
        start = encode((program, limits.cpu_seconds, limits.memory_bytes, limits.wall_seconds))
        order = encode((token, needs.text, needs.imports, names_of(needs, program)))
    except ValueError as error:
        raise RunError(f"this program or its tests are too long to run: {error}") from error
    folder = None
    try:
        folder = mkdtemp(prefix="specbench-")
        os.chmod(folder, 0o755)  # for a supervisor that changes its user
        with _start(folder) as process:
            try:
                return _converse(process, start, order, token, limits.wall_seconds)
            finally:
                # Before waiting for the process, so that the group's id cannot be reused.
                with suppress(ProcessLookupError, PermissionError):  # only a zombie is left
                    os.killpg(process.pid, signal.SIGKILL)
    except OSError as error:
        raise RunError(f"cannot start a process for generated code: {error}") from error
    finally:
        if folder is not None:
            _remove(folder)


@cache
def layers() -> tuple[str, ...]:
    """Return the names of the layers available on this system; see ``judge``."""
    return judge("", ("pass",))[1]


def weakness() -> str | None:
    """Return one sentence on what a program can read here, or None if reading is limited."""
    active = set(layers())
    if active & {"landlock", "user"}:
        return None
    readable = "every file that you may read"
    if sys.platform == "linux" and "namespaces" not in active:
        readable += " and, through /proc, the memory and environment of your processes"
    return f"the sandbox cannot limit reading on this system: a program in it can read {readable}"


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
        active = decode(receive(verdicts, deadline))
    except Gone as error:
        message = f"the Python process for generated code does not start ({_fault(process)})"
        raise RunError(f"{message}; run it again") from error
    if isinstance(active, str):
        raise RunError(active)
    try:
        deadline = time.monotonic() + wall_seconds + GRACE_SECONDS
        send(orders, order, deadline)
        verdict = receive(verdicts, deadline)
    except Gone:
        return False, tuple(active)
    if verdict.startswith(token) and verdict != token:
        raise broken(verdict[_TOKEN_BYTES:].decode(errors="replace"))
    return verdict == token, tuple(active)


def _fault(process: subprocess.Popen[bytes]) -> str:
    """Return the exit status of a failed process, with the last line of its stderr."""
    assert process.stderr is not None
    try:
        status = f"exit status {process.wait(GRACE_SECONDS)}"
    except subprocess.TimeoutExpired:
        status = "no answer"
    os.set_blocking(process.stderr.fileno(), False)
    lines = (process.stderr.read(1 << 16) or b"").decode(errors="replace").split("\n")
    return ": ".join([status, *[line.strip() for line in lines if line.strip()][-1:]])


def _remove(folder: str) -> None:
    """Remove a folder; if it is not empty, use tools that work at any depth."""
    with suppress(OSError):
        os.rmdir(folder)
        return
    for tool in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        with suppress(OSError):
            subprocess.run([*tool, folder], stderr=subprocess.DEVNULL, check=False)
