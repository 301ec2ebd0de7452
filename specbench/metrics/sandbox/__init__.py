"""Running a program that nobody trusts, and telling whether it passes its tests.

Three processes take part. The caller (``launch``) reads the tests (``statements``) and starts a
supervisor, a bare Python in a session of its own, with no environment, in an empty folder. The
supervisor (``supervisor``) forks the program's process (``program``) and only then receives the
tests and a random token. It runs the tests itself (``checker``). What the program defines is called
over a pipe (``wire``): plain data is copied, and the program's other objects have handles. The
supervisor sends the token back if no test failed. The program's process never holds the tests, the
token or the pipe of the verdict, so it cannot forge a pass: not by exiting, printing, killing the
supervisor or replacing builtins, and not with an object that equals everything.

Each layer and what it guards; those that a system lacks are skipped, ``launch.layers`` lists the
others:

- limits (every POSIX system): processor time, memory, size of files (0), processes (0), open
  files, and by the clock of the supervisor also wall time;
- namespaces (Linux; root, or where users may create them): no network, no signals to processes
  outside nor, for users other than root, a look into them, and all processes of the program die
  with its first;
- user (root only): the program runs as nobody, without any of root's rights, and reads what
  everybody may read. Where Python itself is not among that, Landlock must hold, or nothing is run;
- Landlock (Linux 5.13): no file can be read but Python's own library and shared libraries;
- seccomp (Linux on x86-64 and ARM64): only the system calls that computing needs, hence no
  processes, no signals, no sockets, and no file opened for writing, created, changed or removed;
- an audit hook (everywhere, and the only guard of files and network on macOS): it turns forbidden
  deeds into a PermissionError. Hostile code can get round it.

Not guarded: errors of the kernel itself; timing as a channel; which files exist (not what is in
them); the memory of the machine beyond the limit per process. Where there is neither Landlock nor
the layer of the user, the program can read what its user can; where there are no namespaces
either, as for an ordinary user of an old kernel, that includes, through /proc, the memory and
environment of the caller, hence the tests: ``launch.weakness`` says so. A test that compares or
computes with two objects which the program made, or that calls a second function of the program to
know what is right, trusts the program in that; one that compares one object with several values
lets it guess anew each time.

Tests see the program as in plain Python, lists and the like that it is given, returns or changes
included, with these exceptions:

- What the program keeps of an argument after the call, or a test of a result, is a copy. So is any
  immutable value, as ``is`` tells.
- Tests hand the program plain data (see ``wire``), its own objects and builtin exceptions, but no
  functions, classes, iterators or other objects of theirs; that fails.
- An object of the program that is not of a subclass of a plain type has no order, no arithmetic and
  no equality with plain data; ``in`` goes through its items. It is no case of a ``match``, no
  awaitable, and cannot be copied by ``copy``.
- An exception of a class of the program's own arrives as the builtin one that it derives from, with
  its arguments or text, and ``except`` takes no class of the program's. StopIteration from anything
  but an iterator arrives as a RuntimeError. A context manager of the program swallows no exception
  of the tests, nor is it told which one it was.
- No value nests deeper than 100 or is longer than 8 MiB; a program starts no threads, and what it
  prints is lost.

No test of MBPP or HumanEval needs any of that.

The supervisor imports this package as ``sandbox``, apart from ``specbench``, which starts faster.
Its modules, all but ``launch`` and ``statements``, therefore import each other relatively, and of
the standard library only what is quick to import.
"""
