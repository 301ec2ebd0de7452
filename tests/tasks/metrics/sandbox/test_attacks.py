"""Programs that try to pass without being right, or to do harm: none succeeds."""

import fcntl
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

from ..test_code import RIGHT, TESTS, WRONG
from .conftest import programs

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
    name: text.replace("{FORGED_REPLY}", FORGED_REPLY)
    for name, text in programs("forgeries.txt").items()
}
HARM, READING = programs("harm.txt"), programs("reading.txt")
BUSY = ("loop", "one long operation", "loop that catches")  # the hook has no part in their end


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


def test_a_program_cannot_add_names_to_the_tests_or_make_impossible_changes(passes):
    program = FORGED_REPLY + "def half(x): return 0.0\ndef abs(x): return 0\n"
    program += "found = {'half': half, 'abs': abs}\n"
    for changes in ("{}", *(f"{{{at}: tuple(found)}}" for at in range(4))):
        forged = f"{program}forge(None, found, {changes})"
        assert not passes(forged, "assert abs(half(3) - 1.5) < 1e-6")
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
    inherited = fcntl.fcntl(handle, fcntl.F_DUPFD, 200)  # a free number from 200 on
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
        os.close(inherited)


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
