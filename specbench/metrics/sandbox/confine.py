"""Everything that a process gives up before a program, or its tests, run in it."""

import os
import resource
import sys

from . import linux, seccomp

OPEN_FILES = 64


def limit(kind: int, value: int) -> None:
    """Lower one resource limit of this process for good."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:  # noqa: SIM105 (contextlib is slow to import)
        resource.setrlimit(kind, (value, value))
    except ValueError:
        pass  # macOS knows no limit on address space; the other limits hold


def confine(cpu_seconds: int, memory_bytes: int, supervising: bool = False) -> list[str]:
    """Put every layer around this process that the system offers.

    Args:
        cpu_seconds: Processor time.
        memory_bytes: Address space.
        supervising: Still allow to kill and to wait for children.

    Returns:
        Names of the layers that hold.

    Raises:
        PermissionError: The program could read either no library or every file.
    """
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        limit(kind, value)
    library = os.path.dirname(os.__file__)
    linux.renounce_privileges()
    # While this is still root, who can open every folder of the library.
    landlock = linux.read_only(_readable(library), silent=not supervising)
    nobody = linux.become_nobody(library, landlock)
    if not nobody:
        linux.drop_capabilities()
    linux.hide()  # a change of user would undo it, and this
    linux.die_with_parent()
    allowed = seccomp.instructions(supervising)
    layers = {
        "limits": True,
        "user": nobody,
        "landlock": landlock,
        "seccomp": bool(allowed) and linux.filter_calls(allowed),
    }
    return [name for name, holds in layers.items() if holds]


def _readable(library: str) -> list[str]:
    """Return where Python and the libraries of its modules lie, where no user's data does."""
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.join(sys.base_prefix, "lib")]
    data = ["/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null", "/dev/urandom", os.curdir]
    return [library, *shared, *data]
