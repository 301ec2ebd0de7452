"""Programs that try to pass without being right, or to do harm: none succeeds."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from specbench.tasks.metrics.sandbox.launch import Limits, judge

RIGHT = "def double(x):\n    return x * 2\n"
WRONG = "def double(x):\n    return x\n"
TESTS = ("assert double(2) == 4", "assert double('a') == 'aa'")
SHORT = Limits(cpu_seconds=1, wall_seconds=1.5)  # of programs that must not pass
SECONDS = 1800  # programs that wait do so for an hour; this limit only shows that they were ended

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs layers of the Linux kernel")

# Makes the next reply an arbitrary value, once.
FORGED_REPLY = (
    "import sys\nserver, wire = sys.modules['sandbox.program'], sys.modules['sandbox.wire']\n"
    "def forge(*reply, encode=server.encode):\n"
    "    def once(value, *args):\n"
    "        server.encode = encode\n"
    "        return encode(reply, *args)\n"
    "    server.encode = once\n"
)
FORGERIES = {
    "status 0": "raise SystemExit(0)",
    "exit": "exit(0)",
    "exit at once": "import os\nos._exit(0)",
    "exit in the function": "def double(x):\n    raise SystemExit(0)",
    "exit at once in the function": "import os\ndef double(x):\n    os._exit(0)",
    "printing": "print('passed', 'True', 1)",
    "writing everywhere": "import os\n"
    "for pipe in range(300):\n"
    "    try:\n        os.write(pipe, b'T' * 1000)\n"
    "    except OSError:\n        pass",
    "answering at once": "import os, sys\n"
    "answer = sys.modules['sandbox.wire'].encode((None, {}, {}))\n"
    "os.write(4, (len(answer).to_bytes(4, 'big') + answer) * 100)",
    "patched builtins": "import builtins\nbuiltins.AssertionError = Warning\n"
    "builtins.exec = builtins.compile = lambda *args, **named: None\n"
    "builtins.len = lambda x: 4\nimport os\nos.write = os._exit = lambda *args: None",
    "own builtins": "__builtins__['AssertionError'] = Warning\nAssertionError = Warning",
    "patched comparison": "import sys\nserver = sys.modules['sandbox.program']\n"
    "server.Objects.plain = server.perform = lambda *args: True",
    "patched checker": "import sys\n"
    "sys.modules['sandbox.checker'].passes = sys.modules['sandbox.supervisor'].passes = "
    "lambda *args: True",
    "patched sending": "import sys\nserver = sys.modules['sandbox.program']\n"
    "server.send = lambda pipe, message: server.os.write(pipe, b'T' * 100)",
    "other names": FORGED_REPLY + "class Less:\n    def __call__(self, *args): return None\n"
    "forge(None, {'__builtins__': {}, 'AssertionError': Less(), 'double': Less()}, {})",
    "names added to those of the tests": FORGED_REPLY + "def same(*args): return 4\n"
    "found = {'double': same, 'int': same, 'str': same, '__builtins__': {'str': same}}\n"
    "forge(None, found, {at: tuple(found) for at in range(1)})",
    "a list for a reply": FORGED_REPLY + "server.encode = lambda *args: wire.encode([None, 4, {}])",
    "content that is no plain data": FORGED_REPLY + "class Equal(int):\n"
    "    def __eq__(self, other): return True\n"
    "server.Objects.plain = lambda self, value: ([Equal()] if value is many else Equal(),)\n"
    "many = Equal(5)\ndef double(x): return many if x == 2 else Equal(6)",
    "an exception of no kind": FORGED_REPLY + "forge(int, {'double': 4}, {})",
    "other contents than can be": FORGED_REPLY + "forge(None, {}, {0: 'x', 99: ()})",
    "equal to all": "class Equal:\n"
    "    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return False\n"
    "    def __hash__(self): return 0\n"
    "def double(x): return Equal()",
    "number equal to all": "class Equal(int):\n"
    "    def __eq__(self, other): return True\n"
    "def double(x): return Equal(3)",
    "text equal to all": "class Equal(str):\n"
    "    def __eq__(self, other): return True\n"
    "def double(x): return Equal('3')",
    "all frames": "import sys, gc\n"
    "frame, found = sys._getframe(), []\n"
    "while frame:\n"
    "    found += [value for value in frame.f_locals.values() if type(value) is bytes]\n"
    "    frame = frame.f_back\n"
    "found += [value for value in gc.get_objects() if type(value) is bytes]\n"
    "import os\nfor token in found:\n    os.write(4, token)",
    "trace": "import sys\nsys.settrace(lambda *args: None)\nsys.setprofile(None)",
    "hook at exit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit",
    "no return": "import threading\nthreading.Event().wait()",
    "deep": "x = []\nfor _ in range(10**6):\n    x = [x]\ndef double(y): return x",
    "self": "x = []\nx.append(x)\ndef double(y): return x",
    "too long": "def double(y): return 'x' * (9 << 20)",
    "crash": "import sys\nsys.setrecursionlimit(10**9)\ndef double(y): return double(y)",
}

HARM = {
    "loop": "while True:\n    pass",
    "one long operation": "x = 9**9**9",
    "sleep": "import time\ntime.sleep(3600)",
    "loop that catches": "while True:\n    try:\n        while True:\n            pass\n"
    "    except BaseException:\n        pass",
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n"
    "    except OSError:\n        pass",
    "threads": "import threading, time\nwhile True:\n"
    "    threading.Thread(target=time.sleep, args=(3600,)).start()",
    "100 GB": "x = bytearray(100 << 30)",
    "memory bit by bit": "x = []\nwhile True:\n    x.append(bytes(1 << 20))",
    "10 GB file": "with open('big', 'wb') as file:\n    for _ in range(10 << 10):\n"
    "        file.write(bytes(1 << 20))",
    "file elsewhere": "import os\nos.open({stray!r}, os.O_CREAT | os.O_WRONLY)",
    "folder": "import os\nos.mkdir('folder')",
    "removal": "import os\nos.remove({secret!r})",
    "renaming": "import os\nos.rename({secret!r}, {stray!r})",
    "mode": "import os\nos.chmod({secret!r}, 0)",
    "shared memory": "open('/dev/shm/{word}', 'w')",
    "memory map": "import mmap\nwith open({secret!r}) as file:\n"
    "    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_WRITE)[0] = 0",
    "process": "import subprocess\nsubprocess.run(['true'])",
    "other program": "import os\nos.execv('/bin/sleep', ['sleep', '3600', {word!r}])",
    "killing the parent": "import os\nos.kill(os.getppid() or 1 / 0, 9)",
    "stopping the parent": "import os\nos.kill(os.getppid() or 1 / 0, 19)",
    "daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        time.sleep(3600)\n    os._exit(0)",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
    "datagram": "import socket\n"
    "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
}
BUSY = ("loop", "one long operation", "loop that catches")  # the hook has no part in their end
READING = {
    "file": "open({secret!r}).read()",
    "users": "open('/etc/passwd').read()",
    "environment": "open('/proc/self/environ').read()",
    "environment of the parent": "import os\nopen(f'/proc/{{os.getppid() or 1}}/environ').read()",
    "descriptors of the parent": "import os\nos.listdir(f'/proc/{{os.getppid() or 1}}/fd')",
    "another Python's packages": "import sys\nsys.path += {packages!r}\nimport pytest",
    "memory of the parent": "import os\nopen(f'/proc/{{os.getppid() or 1}}/mem', 'rb').read(1)",
}


@pytest.fixture(autouse=True)
def nothing_is_left(alone, tmp_path_factory, monkeypatch) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("folders")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    start = time.perf_counter()
    yield
    assert time.perf_counter() - start < SECONDS and os.listdir(folder) == []


@pytest.fixture
def places(tmp_path, alone) -> Iterator[dict[str, object]]:
    """The targets of attacks; at the end they must be unchanged."""
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    secret, stray = tmp_path / "secret", tmp_path / "stray"
    secret.write_text("secret")
    secret.chmod(0o666)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        port = server.getsockname()[1]
        files = {"secret": str(secret), "stray": str(stray)}
        yield files | {"port": port, "word": alone, "packages": sys.path}
        with pytest.raises(BlockingIOError):
            server.accept()
    assert secret.read_text() == "secret" and os.access(secret, os.R_OK)
    assert os.listdir(tmp_path) == ["secret"]


def passing(programs: dict[str, str]) -> list[str]:
    """The names of the programs that pass; several run at a time, since many only wait."""
    with ThreadPoolExecutor(4) as pool:
        passed = pool.map(lambda program: judge(program, TESTS, "", SHORT)[0], programs.values())
        return [name for name, one in zip(programs, passed, strict=True) if one]


def test_the_same_harness_passes_an_honest_program(passes):
    assert passes(RIGHT + "import os\nassert os.listdir() == []", *TESTS)
    assert passes(RIGHT + FORGERIES["patched builtins"], *TESTS, "assert len([]) == 0")
    # The methods of forging a reply work as such.
    assert passes(FORGED_REPLY + "forge(None, {'x': 5}, {})", "assert x == 5")


@pytest.mark.parametrize("hook", [True, False], ids=["hook", "no hook"])
def test_no_forgery_passes(hook, without):
    if not hook:
        without("hook")
    assert passing({name: WRONG + FORGERIES[name] for name in FORGERIES}) == []


def test_a_program_cannot_add_names_to_the_tests(passes):
    program = FORGED_REPLY + "def half(x): return 0.0\ndef abs(x): return 0\n"
    program += "found = {'half': half, 'abs': abs}\n"
    for changes in ("{}", *(f"{{{at}: tuple(found)}}" for at in range(4))):
        forged = f"{program}forge(None, found, {changes})"
        assert not passes(forged, "assert abs(half(3) - 1.5) < 1e-6")


def test_impossible_changes_of_arguments_end_the_program(passes):
    program = FORGED_REPLY + "def f(a): forge(None, None, {})"
    assert passes(program.format("{0: (1, 3)}"), "x = {1: 2}\nassert f(x) is None and x == {1: 3}")
    for changes in ("{0: (1, 2, 3)}", "{0: 1}", "{5: ()}", "{'x': ()}", "{0: ([], 1)}", "[()]"):
        test = "try:\n    f({1: 2})\nexcept BaseException:\n    pass"
        assert not passes(program.format(changes), test), changes


@pytest.mark.parametrize("hook", [True, pytest.param(False, marks=linux)], ids=["hook", "no hook"])
def test_harmful_programs_fail_and_leave_nothing(hook, without, places):
    deeds = HARM if hook else {name: HARM[name] for name in HARM if name not in BUSY} | READING
    if not hook:
        without("hook")
    programs = {name: RIGHT + deed.format(**places) for name, deed in deeds.items()}
    assert passing(programs) == []


def test_a_program_has_its_own_environment_descriptors_and_folder(passes, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECBENCH_SECRET", "hidden")
    monkeypatch.chdir(tmp_path)
    handle = os.open(tmp_path, os.O_RDONLY)
    os.dup2(handle, 200, inheritable=True)
    program = (
        "import os\n"
        "here, listing, secret = os.getcwd(), os.listdir(), os.environ.get('SPECBENCH_SECRET')\n"
        "def is_open(number):\n"
        "    try:\n        os.fstat(number)\n    except OSError:\n        return False\n"
        "    return True\n"
        "descriptors = [number for number in range(300) if is_open(number)]\n"
    )
    try:
        assert passes(
            program,
            f"assert here != {str(tmp_path)!r} and listing == []",
            "assert secret is None",
            "assert descriptors == [0, 1, 2, 3, 4]",
        )
    finally:
        os.close(handle)
        os.close(200)


def test_a_program_runs_in_a_session_of_its_own(passes, monkeypatch):
    # Asked from outside: in a namespace or a container, a session's number may be 0.
    start, sessions = subprocess.Popen, []

    def noted(*command, **options):
        process = start(*command, **options)
        sessions.append((os.getsid(process.pid), process.pid))
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)
    assert passes("", "pass")
    assert [number == leader for number, leader in sessions] == [True]
