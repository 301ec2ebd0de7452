"""Running a program that nobody trusts, and telling whether it passes its tests.

Three processes take part. The caller (``launch``) starts a supervisor, a bare Python in a session
of its own, with no environment, in an empty folder. The supervisor (``supervisor``, ``checker``)
forks the program's process (``program``) and only then is told the tests and a random token. It
runs the tests itself; what the program defines is called over a pipe, and only plain data crosses
it (``wire``). It sends the token back if no test failed. The program's process never holds the
tests, the token or the pipe of the verdict, so nothing that it does can pass for it: not exiting,
printing or killing the supervisor, no replaced builtin, and no object that equals everything.

Each layer and what it guards; those that a system lacks are skipped, ``launch.layers`` tells:

- limits (every POSIX system): processor time, memory, size of files (0), processes (0), open
  files, and by the clock of the supervisor also wall time;
- namespaces (Linux; root, or where users may create them): no network, no signals to processes
  outside, and all processes of the program die with its first;
- user (root only): the program runs as nobody, without any of root's rights;
- Landlock (Linux 5.13): no file can be read but Python's own library and shared libraries;
- seccomp (Linux on x86-64 and ARM64): only calls of the system that computing needs, hence no
  processes, no signals, no sockets, and no file opened for writing, created, changed or removed;
- an audit hook (everywhere, and the only guard of files and network on macOS): a courtesy that
  turns forbidden deeds into a PermissionError. Code that means harm gets round it.

Not guarded: errors of the kernel itself; the time and warmth of the processor as a channel; which
files exist (not what is in them); reading files that everybody may read where there is no Landlock
or, on macOS, at all; the memory of the machine beyond the limit per process. A test that compares
two objects which the program made, or that calls a second function of the program to know what is
right, trusts the program in that; one that compares one object with several values lets it guess
anew each time. Tests can hand the program plain data and its own objects, but no functions of
theirs: that fails, as does arithmetic with its objects. No test of MBPP or HumanEval needs either.

This package is imported by the supervisor as ``sandbox``, apart
from ``specbench``, since that starts faster: its modules import each other relatively, and of the
standard library only what is quick to import.
"""
