"""Linux kernel layers around a process; each function returns whether the kernel supports it.

All layers are irreversible: neither the process nor its children can regain what it gives up.

The system call filter allows what computation needs. All other calls are refused: processes and
threads, other programs, signals, sockets, changes to files and to the process itself. They fail
with EPERM, Python's PermissionError.
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

PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SIGKILL = 9
_NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
_CAPABILITIES_VERSION = 0x20080522
_READ_EVERYTHING = 1 << 2  # CAP_DAC_READ_SEARCH
_NOBODY = 65534

# Landlock's system calls have the same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Number of file rights that each version of Landlock can restrict.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_NEWEST_FILE_RIGHTS = 16
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals

# System calls with their numbers on x86-64 and on ARM64; "-" if there is none.
_ALLOWED = """
    read 0 63, write 1 64, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62,
    mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134,
    rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, readv 19 65, writev 20 66,
    access 21 -, select 23 -, sched_yield 24 124, mremap 25 216, madvise 28 233, dup 32 23,
    nanosleep 35 101, getpid 39 172, exit 60 93, uname 63 160, getdents 78 -, getcwd 79 17,
    readlink 89 -, gettimeofday 96 169, getrusage 98 165, sysinfo 99 179, times 100 153,
    getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173,
    getsid 124 156, sigaltstack 131 132, gettid 186 178, time 201 -, futex 202 98,
    sched_getaffinity 204 123, getdents64 217 61, restart_syscall 219 128, clock_gettime 228 113,
    clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94, newfstatat 262 79,
    readlinkat 267 78, faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99,
    getrandom 318 278, membarrier 324 283, statx 332 291, rseq 334 293, faccessat2 439 439
"""
_SUPERVISING = "wait4 61 260, kill 62 129"  # additional calls of the supervisor
# The calls that open a file: their numbers, and the index of the flags argument.
_OPENING: tuple[tuple[int | None, int | None, int], ...] = ((2, None, 1), (257, 56, 2))
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # opcodes of classic BPF
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000

Instruction = tuple[int, int, int, int]  # opcode, jumps if true and if false, operand


def control(option: int, value: int, pointer: bytes | None = None) -> bool:
    """Set an option of this process (prctl); return whether it holds."""
    return _LIBC is not None and not _LIBC.prctl(option, value, pointer, 0, 0)


def hide() -> bool:
    """Prevent other processes of the same user from reading this one's memory and descriptors."""
    return control(_PR_SET_DUMPABLE, 0)


def own_namespaces() -> bool:
    """Put the next child into namespaces without network and without other processes."""
    if _LIBC is None:
        return False
    spaces = _NEW_PID | _NEW_NET | _NEW_IPC
    # In a user namespace, root could not become nobody.
    return not _LIBC.unshare(spaces if os.geteuid() == 0 else spaces | _NEW_USER)


def become_nobody(needed: str, guarded: bool) -> bool:
    """Change from root to the user nobody, but keep the folder ``needed`` readable.

    If only root may enter that folder and Landlock limits reading (``guarded``), the process keeps
    the right to read all files; without Landlock it is refused.
    """
    if _LIBC is None or os.geteuid() != 0:
        return False
    control(_PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:  # a container without this right
        return False
    readable = os.access(needed, os.R_OK | os.X_OK)
    drop_capabilities(_READ_EVERYTHING if guarded and not readable else 0)
    if not readable and not guarded:
        raise PermissionError(
            "Python is in a folder that only root may read, and without Landlock the sandbox "
            "cannot allow a program to read only that; use a Python in a world-readable folder"
        )
    return True


def drop_capabilities(keep: int = 0) -> bool:
    """Give up all of root's rights except those in the mask ``keep``."""
    if _LIBC is None:
        return False
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    return not _LIBC.capset(header, struct.pack("=6I", keep, keep, 0, 0, 0, 0))


def read_only(paths: list[str], silent: bool) -> bool:
    """Allow reading only at these paths, and no writing (Landlock).

    Paths that do not exist are skipped; ``silent`` also forbids signals to other processes.
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
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return
    rights = _READ_FILE | _READ_FOLDER if os.path.isdir(path) else _READ_FILE
    _LIBC.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, descriptor), 0)
    os.close(descriptor)


def instructions(supervising: bool) -> list[Instruction]:
    """Return the system call filter in classic BPF; empty on unsupported machines."""
    machine = os.uname().machine
    if not _LINUX or machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        return []
    architecture, column = _ARCHITECTURES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for *numbers, argument in _OPENING:
        opening = numbers[column]
        if opening is not None:
            program += [
                (_EQUAL, 0, 4, opening),
                (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),  # the lower half, with the flags
                (_ANY_BIT, 0, 1, _WRITING),
                (_RETURN, 0, 0, _REFUSE),
                (_RETURN, 0, 0, _ALLOW),
            ]
    calls = _ALLOWED.split(",") + (_SUPERVISING.split(",") if supervising else [])
    for number in [call.split()[1 + column] for call in calls]:
        if number != "-":
            program += [(_EQUAL, 0, 1, int(number)), (_RETURN, 0, 0, _ALLOW)]
    return [*program, (_RETURN, 0, 0, _REFUSE)]


def filter_calls(supervising: bool) -> bool:
    """Filter system calls (seccomp); ``supervising`` allows killing and waiting for children."""
    program_lines = instructions(supervising)
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program_lines)
    code = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("@HP", len(program_lines), ctypes.addressof(code))
    return bool(program_lines) and control(_PR_SET_SECCOMP, 2, program)
