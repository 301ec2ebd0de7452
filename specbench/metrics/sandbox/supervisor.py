"""The supervisor: starts the program's process, then learns the tests and judges by them.

Run by ``launch`` as the main program of a bare Python. Its standard input brings messages (see
``pipes``): the program and its limits, then, once the program's process is apart, the token and the
tests. Its standard output takes the names of the layers, or what is wrong with this machine; then
the token if no test failed, or the token and what is wrong with the tests.
"""

from __future__ import annotations

import os
import sys
import time
from os import _exit as leave  # before a program can replace it

from . import linux
from .checker import Broken, holds
from .confine import confine
from .objects import Program
from .pipes import Gone, receive, send
from .program import refuse, serve
from .wire import decode, encode, nothing_opaque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main() -> NoReturn:
    """Judge one program and exit."""
    try:
        _judge()
    finally:
        leave(0)


def _judge() -> None:
    os.environ.clear()  # what Python itself needed to start
    orders, verdicts, nowhere = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    source, cpu, memory, wall = decode(receive(orders), _unknown)
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
            send(verdicts, encode(str(error), nothing_opaque))
            return
        started = decode(receive(from_program), _unknown)
        deadline = time.monotonic() + wall
        send(verdicts, encode(layers + started, nothing_opaque))
        # Only now, when the program's process is a copy of what this one was before.
        token, *tests = decode(receive(orders), _unknown)
        verdict = _verdict(token, tests, source, Program(to_program, from_program, deadline))
    finally:
        os.kill(child, 9)  # the first of its namespace, where it has one: with it go all others
        os.waitpid(child, 0)
    send(verdicts, verdict)


def _verdict(token: bytes, tests: Any, source: str, program: Program) -> bytes:
    try:
        return token if holds(tests, source, program) else b""
    except Broken as error:
        return token + str(error).encode(errors="replace")


def _run(source: str, pipes: tuple[int, int], cpu: int, memory: int) -> None:
    """Be the program's process: nothing is left open but its two pipes."""
    moved = [os.dup2(pipe, 250 + at) for at, pipe in enumerate(pipes)]
    requests, replies = os.dup2(moved[0], 3), os.dup2(moved[1], 4)
    os.closerange(5, 256)
    send(replies, encode(confine(cpu, memory), nothing_opaque))
    sys.addaudithook(refuse)
    serve(source, requests, replies)


def _unknown(number: int) -> object:
    raise Gone("an object from nowhere")
