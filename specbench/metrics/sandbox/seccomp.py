"""The filter of system calls: what computing needs is allowed, everything else is refused.

Refused are, since they are not named here: processes and threads, other programs, signals, sockets,
changes of files and of what the process itself is. They fail with EPERM, Python's PermissionError.
"""

import os
import sys

# Call, its number on x86-64, its number on ARM64; None where there is no such call.
_ALLOWED: tuple[tuple[str, int, int | None], ...] = (
    ("read", 0, 63),
    ("write", 1, 64),
    ("close", 3, 57),
    ("stat", 4, None),
    ("fstat", 5, 80),
    ("lstat", 6, None),
    ("poll", 7, None),
    ("lseek", 8, 62),
    ("mmap", 9, 222),
    ("mprotect", 10, 226),
    ("munmap", 11, 215),
    ("brk", 12, 214),
    ("rt_sigaction", 13, 134),
    ("rt_sigprocmask", 14, 135),
    ("rt_sigreturn", 15, 139),
    ("pread64", 17, 67),
    ("readv", 19, 65),
    ("writev", 20, 66),
    ("access", 21, None),
    ("select", 23, None),
    ("sched_yield", 24, 124),
    ("mremap", 25, 216),
    ("madvise", 28, 233),
    ("dup", 32, 23),
    ("nanosleep", 35, 101),
    ("getpid", 39, 172),
    ("exit", 60, 93),
    ("uname", 63, 160),
    ("getdents", 78, None),
    ("getcwd", 79, 17),
    ("readlink", 89, None),
    ("gettimeofday", 96, 169),
    ("getrusage", 98, 165),
    ("sysinfo", 99, 179),
    ("times", 100, 153),
    ("getuid", 102, 174),
    ("getgid", 104, 176),
    ("geteuid", 107, 175),
    ("getegid", 108, 177),
    ("getppid", 110, 173),
    ("getsid", 124, 156),
    ("sigaltstack", 131, 132),
    ("gettid", 186, 178),
    ("time", 201, None),
    ("futex", 202, 98),
    ("sched_getaffinity", 204, 123),
    ("getdents64", 217, 61),
    ("restart_syscall", 219, 128),
    ("clock_gettime", 228, 113),
    ("clock_getres", 229, 114),
    ("clock_nanosleep", 230, 115),
    ("exit_group", 231, 94),
    ("newfstatat", 262, 79),
    ("readlinkat", 267, 78),
    ("faccessat", 269, 48),
    ("pselect6", 270, 72),
    ("ppoll", 271, 73),
    ("set_robust_list", 273, 99),
    ("getrandom", 318, 278),
    ("membarrier", 324, 283),
    ("statx", 332, 291),
    ("rseq", 334, 293),
    ("faccessat2", 439, 439),
)
# The calls that open a file, and which of their arguments says how.
_OPENING: tuple[tuple[int | None, int | None, int], ...] = ((2, None, 1), (257, 56, 2))
# What the supervisor may do besides: kill, wait4.
_SUPERVISING: tuple[tuple[int, int], ...] = ((62, 129), (61, 260))
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # opcodes of classic BPF
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000

Instruction = tuple[int, int, int, int]


def instructions(supervising: bool) -> list[Instruction]:
    """Return the filter for this machine, or nothing where its calls are not known here.

    Args:
        supervising: Also allow the supervisor's calls.

    Returns:
        Instructions of classic BPF: opcode, jumps if true and if false, operand.
    """
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        return []
    architecture, column = _ARCHITECTURES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for *numbers, argument in _OPENING:
        number = numbers[column]
        if number is not None:
            program += [
                (_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),  # the lower half; flags lie there
                (_ANY_BIT, 0, 1, _WRITING),
                (_RETURN, 0, 0, _REFUSE),
                (_RETURN, 0, 0, _ALLOW),
            ]
    allowed = [numbers[column] for _, *numbers in _ALLOWED]
    allowed += [numbers[column] for numbers in _SUPERVISING] if supervising else []
    for number in allowed:
        if number is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    return [*program, (_RETURN, 0, 0, _REFUSE)]
