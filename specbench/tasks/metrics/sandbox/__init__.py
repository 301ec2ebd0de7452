"""Running an untrusted program and deciding whether it passes its tests.

Three processes take part. The caller (``launch``) parses the tests (``statements``) and starts a
supervisor, a bare Python in its own session, without environment variables, in an empty folder. The
supervisor (``supervisor``) forks the program's process (``program``) and only then receives the
tests and a random token. It runs the tests itself (``checker``). Calls to the program's definitions
go over a pipe (``wire``): plain data is copied, and other objects of the program become handles.
The supervisor returns the token if no test failed. The program's process never has the tests, the
token or the pipe for the verdict, so it cannot forge a pass: not by exiting, printing, killing the
supervisor, replacing builtins, or returning an object that equals everything.

These are the layers and what each guards. Layers that a system lacks are skipped; ``launch.layers``
lists those in force:

- limits (every POSIX system): CPU time, memory, file size (0), processes (0), open files, and wall
  time by the supervisor's clock;
- namespaces (Linux; as root, or if users may create them): no network, no signals to processes
  outside and, for users other than root, no view of them; all processes of the program die with the
  first one;
- user (root only): the program runs as nobody, without root's rights, and can read only
  world-readable files. If Python itself is not world-readable, Landlock is required;
- Landlock (Linux 5.13): reading is limited to Python's own library and shared libraries;
- seccomp (Linux on x86-64 and ARM64): only system calls for computation, hence no processes, no
  signals, no sockets, and no file opened for writing, created, changed or removed;
- an audit hook (everywhere, and the only guard of files and network on macOS): it raises
  PermissionError for forbidden operations. Hostile code can bypass it.

Not guarded: bugs in the kernel itself; timing channels; the existence (not the content) of files;
the machine's memory beyond the limit per process. Without both Landlock and the user layer, the
program can read whatever its user can. Without namespaces as well, as for an ordinary user on an
old kernel, this includes, through /proc, the memory and environment of the caller, hence the tests:
``launch.weakness`` reports this. A test trusts the program if it compares or computes with two
objects made by the program, or if it calls a second function of the program for the expected value.
A test that compares one object with several values lets it guess anew each time.

Tests see the program as in plain Python, including lists and other containers that it is passed,
returns or changes, with these exceptions:

- If the program keeps an argument after the call, or a test keeps a result, it is a copy. So is any
  immutable value, which ``is`` reveals.
- Tests can pass the program plain data (see ``wire``), its own objects and builtin exceptions, but
  no functions, classes, iterators or other objects of their own; these fail.
- An object of the program has no order, no arithmetic and no equality with plain data, unless its
  class is a subclass of a plain type; ``in`` iterates over its items. It does not match in
  ``match``, is not awaitable, and cannot be copied with ``copy``.
- An exception of the program's own class arrives as its builtin base class, with its arguments or
  text, and ``except`` cannot name the program's classes. StopIteration from anything but an
  iterator arrives as a RuntimeError. A context manager of the program cannot suppress exceptions
  of the tests, and does not learn their type.
- No value is nested deeper than 100 or longer than 8 MiB; a program cannot start threads, and its
  output is discarded.

No test of MBPP or HumanEval needs any of these.

The supervisor imports this package as ``sandbox`` rather than through ``specbench``, which starts
faster. All modules except ``launch`` and ``statements`` therefore use relative imports, and only
parts of the standard library that import quickly.
"""
