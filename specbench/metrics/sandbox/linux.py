"""Layers of the Linux kernel around a process; each returns whether the kernel has it.

All of them are one-way: what a process gives up here, neither it nor its children get back.
"""

import ctypes
import os
import struct
import sys

_LINUX = sys.platform == "linux"
_LIBC = ctypes.CDLL(None) if _LINUX else None
if _LIBC is not None:
    _LONG, _POINTER = ctypes.c_ulong, ctypes.c_void_p
    _LIBC.prctl.argtypes = [ctypes.c_int, _LONG, _POINTER, _LONG, _LONG]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SIGKILL = 9
_NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
_CAPABILITIES_VERSION = 0x20080522
_READ_EVERYTHING = 1 << 2  # CAP_DAC_READ_SEARCH
_NOBODY = 65534

# Landlock's calls of the system have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Rights on files that each version of Landlock can take away: the first has 13.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_NEWEST_FILE_RIGHTS = 16
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals


def _control(option: int, value: int, pointer: bytes | None = None) -> bool:
    return _LIBC is not None and not _LIBC.prctl(option, value, pointer, 0, 0)


def hide() -> bool:
    """Keep other processes of the same user from reading this one's memory and descriptors."""
    return _control(_PR_SET_DUMPABLE, 0)


def die_with_parent() -> bool:
    """Be killed when the parent ends. A change of user undoes it."""
    return _control(_PR_SET_PDEATHSIG, _SIGKILL)


def renounce_privileges() -> bool:
    """Never again gain rights by starting a program; Landlock and seccomp require it."""
    return _control(_PR_SET_NO_NEW_PRIVS, 1)


def own_namespaces() -> bool:
    """Give the next child a world without network and without any process but its own."""
    if _LIBC is None:
        return False
    spaces = _NEW_PID | _NEW_NET | _NEW_IPC
    # In a user namespace, root could not become nobody any more.
    return not _LIBC.unshare(spaces if os.geteuid() == 0 else spaces | _NEW_USER)


def become_nobody(needed: str, guarded: bool) -> bool:
    """Change from root to nobody, who has no rights.

    Args:
        needed: Folder that must stay readable.
        guarded: Whether Landlock limits what can be read. If so, and the folder lies in one that
            only root may enter, the process keeps the right to read all files.

    Raises:
        PermissionError: Nobody may read the folder, and nothing else would guard the other files.
    """
    if _LIBC is None or os.geteuid() != 0:
        return False
    _control(_PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:  # a container without the right to
        return False
    readable = os.access(needed, os.R_OK | os.X_OK)
    drop_capabilities(_READ_EVERYTHING if guarded and not readable else 0)
    if not readable and not guarded:
        raise PermissionError(
            "Python lies where only root may read, and without Landlock the sandbox cannot let "
            "a program read that and nothing else; use a Python in a folder open to all"
        )
    return True


def drop_capabilities(keep: int = 0) -> bool:
    """Give up all of root's rights, or all but some."""
    if _LIBC is None:
        return False
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    return not _LIBC.capset(header, struct.pack("=6I", keep, keep, 0, 0, 0, 0))


def read_only(paths: list[str], silent: bool) -> bool:
    """Let files be read in some places only, and changed in none (Landlock).

    Args:
        paths: Folders and files; those that do not exist are skipped.
        silent: Also send no signals to other processes.
    """
    if _LIBC is None:
        return False
    version = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS.get(version, _NEWEST_FILE_RIGHTS)) - 1
    handled = struct.pack("=Q", rights)
    handled += struct.pack("=Q", _TCP) if version >= 4 else b""
    handled += struct.pack("=Q", _SCOPES if silent else 0) if version >= 6 else b""
    rules = _LIBC.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    for path in paths:
        _allow_reading(rules, path)
    restricted = not _LIBC.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    return restricted


def _allow_reading(rules: int, path: str) -> None:
    assert _LIBC is not None
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return
    rights = _READ_FILE | _READ_FOLDER if os.path.isdir(path) else _READ_FILE
    _LIBC.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, place), 0)
    os.close(place)


def filter_calls(instructions: list[tuple[int, int, int, int]]) -> bool:
    """Let a filter decide about every call of the system (seccomp)."""
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    code = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    return _control(_PR_SET_SECCOMP, 2, program)
