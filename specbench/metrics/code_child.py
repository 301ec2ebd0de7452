"""The other side of pass@1: a script that limits its own process and then runs one program.

It reads what to run from its standard input and answers on its standard output, see ``code.py``.
Only modules that are quick to import are used: this file runs once per generated program.
"""

import builtins
import marshal
import os
import resource
import sys
from typing import NoReturn

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = {"os", "subprocess", "socket", "shutil", "signal", "ctypes", "fcntl", "pty"}
HARMLESS = {"os.listdir", "os.scandir"}  # imports look for modules in folders


def limit(kind: int, value: int) -> None:
    """Lower one resource limit of this process for good."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:  # noqa: SIM105 (contextlib is slow to import)
        resource.setrlimit(kind, (value, value))
    except ValueError:
        pass  # macOS knows no limit on address space; the other limits hold


def refuse(event: str, args: tuple[object, ...]) -> None:
    """Audit hook: no files written, no processes, no network; reading and importing are free."""
    forbidden = event.partition(".")[0] in FORBIDDEN and event not in HARMLESS
    writing = event == "open" and isinstance(args[2], int) and args[2] & WRITING
    if forbidden or writing:
        raise PermissionError(f"a tested program may not do this: {event}")


def main() -> NoReturn:
    """Run a program, then its asserts, and send the token of success if nothing was raised."""
    ready, passed, program, tests, seconds, memory = marshal.loads(sys.stdin.buffer.read())
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    # The program may replace builtins and functions of modules; what follows it must not use them.
    pristine = dict(vars(builtins))
    run, write, leave = exec, os.write, os._exit
    module = type(sys)("program")  # dataclasses and pickle look for it in sys.modules
    sys.modules["program"] = module
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        limit(kind, value)
    sys.addaudithook(refuse)
    try:
        write(answers, ready)
        # Compiled apart, so that an open string or block cannot swallow the asserts.
        checks = compile("\n".join(tests), "<tests>", "exec", dont_inherit=True)
        run(compile(program, "<program>", "exec", dont_inherit=True), vars(module))
        run(checks, {**vars(module), "__builtins__": pristine})
        write(answers, passed)
    finally:
        leave(0)


if __name__ == "__main__":
    main()
