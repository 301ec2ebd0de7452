"""The supervisor: starts the program's process, then receives the tests and runs them.

It runs under ``launch`` as the main program of a bare Python. Its standard input receives messages
(see ``wire``): the program and its limits, then, once the program's process is separate, the token
and the tests. Its standard output returns the names of the layers, or an error of this machine;
then the token if no test failed, or the token and an error in the tests.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from os import _exit as leave  # before a program can replace it

from . import linux
from .checker import BrokenTests, Program, passes
from .program import refuse, serve
from .wire import decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

OPEN_FILES = 64


def main() -> NoReturn:
    """Judge one program and exit."""
    try:
        _judge()
    finally:
        leave(0)


def _judge() -> None:
    os.environ.clear()  # only Python's start needed it
    orders, verdicts, nowhere = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    source, cpu, memory, wall = decode(receive(orders))
    linux.hide()
    layers = ["namespaces"] if linux.own_namespaces() else []
    (requests, to_program), (from_program, replies) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _run(source, (requests, replies), cpu, memory)
        finally:
            leave(0)
    os.close(requests)
    os.close(replies)
    try:
        try:
            confine(cpu, memory, supervising=True)
        except PermissionError as error:
            send(verdicts, encode(str(error)))
            return
        started = decode(receive(from_program))
        deadline = time.monotonic() + wall
        send(verdicts, encode(layers + started))
        # Only now, since the program's process is a copy of this one's earlier state.
        token, *tests = decode(receive(orders))
        try:
            passed = passes(Program(to_program, from_program, deadline), *tests)
            verdict = token if passed else b""
        except BrokenTests as error:
            verdict = token + str(error).encode(errors="replace")
    finally:
        os.kill(child, 9)  # as the first process of a namespace, it takes all others with it
        os.waitpid(child, 0)
    send(verdicts, verdict)


def _run(source: str, pipes: tuple[int, int], cpu: int, memory: int) -> None:
    """Run the program in this process, with only its two pipes open."""
    moved = [os.dup2(pipe, 250 + index) for index, pipe in enumerate(pipes)]
    requests, replies = os.dup2(moved[0], 3), os.dup2(moved[1], 4)
    os.closerange(5, 256)
    send(replies, encode(confine(cpu, memory)))
    sys.addaudithook(refuse)
    serve(source, requests, replies)


def confine(cpu_seconds: int, memory_bytes: int, supervising: bool = False) -> list[str]:
    """Apply all layers that the system supports to this process; return those in force."""
    for kind, value in (
        *((resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_AS, memory_bytes)),
        *((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)),
        *((resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0)),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:  # noqa: SIM105 (contextlib is slow to import)
            resource.setrlimit(kind, (value, value))
        except ValueError:
            pass  # macOS has no limit on address space; the other limits apply
    library = os.path.dirname(os.__file__)
    # Folders of Python and its modules' libraries, without user data.
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.join(sys.base_prefix, "lib")]
    data = ["/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom", os.curdir]
    linux.control(linux.PR_SET_NO_NEW_PRIVS, 1)  # Landlock and seccomp require it
    # Before root's rights are dropped, which may be needed to open the library's folders.
    landlock = linux.read_only([library, *shared, *data], silent=not supervising)
    nobody = linux.become_nobody(library, landlock)
    if not nobody:
        linux.drop_capabilities()
    linux.hide()  # again, since a change of user undoes it, as it does the next call
    linux.control(linux.PR_SET_PDEATHSIG, linux.SIGKILL)  # when the parent ends
    layers = {"limits": True, "user": nobody, "landlock": landlock}
    layers["seccomp"] = linux.filter_calls(supervising)
    return [name for name, holds in layers.items() if holds]
