"""Every layer of the sandbox works alone, with all other layers removed."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.errors import RunError
from specbench.tasks.metrics.sandbox import launch
from specbench.tasks.metrics.sandbox import linux as kernel
from specbench.tasks.metrics.sandbox.launch import Limits, judge, layers, weakness

from .conftest import GENEROUS, programs

WAIT = GENEROUS.wall_seconds
KERNEL = {"namespaces", "user", "landlock", "seccomp"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="layers of the Linux kernel")

# Operations that each layer refuses by itself.
REFUSED = {layer: deeds.splitlines() for layer, deeds in programs("refused.txt").items()}


def attempts(deeds: list[str]) -> str:
    """A program that records which operations are refused."""
    attempt = "try:\n    {}\nexcept (OSError, RuntimeError):\n    refused.append({!r})\n"
    return "refused = []\n" + "".join(attempt.format(deed, deed) for deed in deeds)


@pytest.fixture
def places(tmp_path) -> Iterator[dict[str, object]]:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    public, secret = tmp_path / "public", tmp_path / "secret"
    for file, mode in ((public, 0o666), (secret, 0o600)):
        file.write_text("text")
        file.chmod(mode)
    # Not this process: as the first in a container it would have the program's own number.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        yield {"public": str(public), "secret": str(secret), "process": other.pid, "port": 9}
        other.kill()


@pytest.mark.parametrize("layer", REFUSED)
def test_a_layer_works_alone(layer, without, places):
    if layer not in layers():
        pytest.skip(f"this machine has no {layer}")
    # Wherever Python is; nothing of its library is needed here.
    without("hook", "public library", *KERNEL - {layer})
    deeds = [deed.format(**places) for deed in REFUSED[layer]]
    passed, held = judge(attempts(deeds), (f"assert refused == {deeds!r}",), limits=GENEROUS)
    assert passed and {*held} == {"limits", layer}
    assert Path(str(places["public"])).read_text() == "text"


def test_without_layers_limits_refuse_no_operations_and_hold(without, places):
    without("hook", *KERNEL)
    deeds = [
        *("open({public!r}).read()", "open({public!r}, 'a').close()", "import os; os.setsid()"),
        *("import socket; socket.socket()", "import os; os.kill({process}, 0)"),
    ]
    program = attempts([deed.format(**places) for deed in deeds])
    assert judge(program, ("assert not refused",), limits=GENEROUS) == (True, ("limits",))
    for deed in (
        *("while True: pass", "x = bytes(600 << 20)", "open('big', 'wb', 0).write(b'x')"),
        "x = [open('/dev/null') for _ in range(100)]",
    ):
        start = time.monotonic()
        passed, held = judge(f"x = 0\n{deed}", ("pass",), limits=Limits(1, WAIT))
        assert (passed, held) == (False, ("limits",)), deed
        assert time.monotonic() - start < WAIT, deed  # another limit ended it
    room = "x = bytes(300 << 20)\ny = [open('/dev/null') for _ in range(40)]"
    assert judge(room, ("pass",), limits=GENEROUS)[0]


def test_layers_lists_the_active_layers(without):
    assert set(layers()) <= {"limits"} | KERNEL and "limits" in layers()
    without("seccomp")
    assert set(judge("", ("pass",))[1]) == set(layers()) - {"seccomp"}


def test_an_unknown_machine_has_no_filter(monkeypatch):
    def machine(name):
        monkeypatch.setattr(kernel.os, "uname", lambda: os.uname_result(("", "", "", "", name)))

    machine("riscv64")
    assert kernel.instructions(False) == []
    machine("aarch64")
    arm = kernel.instructions(False)
    machine("x86_64")
    assert arm != kernel.instructions(False)
    # Both calls of the supervisor, each a comparison and its result.
    assert len(kernel.instructions(True)) == len(kernel.instructions(False)) + 4


def test_killing_the_supervisor_kills_its_program(alone, without, monkeypatch):
    start, started = subprocess.Popen, []

    def start_and_kill(*command, **options):
        started.append(start(*command, **options))
        start(["sh", "-c", f"sleep 0.7; kill -9 {started[0].pid}"])
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start_and_kill)
    passed, _ = judge("import time\ntime.sleep(3600)", ("pass",), limits=GENEROUS)
    assert not passed and started[0].returncode == -9


def test_a_private_python_requires_landlock(without, places):
    if not {"user", "landlock"} <= set(layers()):
        pytest.skip("this machine lacks a layer")
    program, test = attempts([f"open({places['secret']!r})"]), ("assert refused",)
    without("hook", "private library")
    passed, held = judge(program, test, limits=GENEROUS)
    assert passed and {"user", "landlock"} <= set(held)
    without("landlock")
    with pytest.raises(RunError):
        judge(program, test, limits=GENEROUS)


def test_a_system_that_cannot_limit_reading_is_reported(monkeypatch):
    for held, expected in [
        ({"limits", "seccomp"}, "every file that you may read and, through /proc, the memory"),
        ({"limits", "seccomp", "namespaces"}, "every file that you may read$"),
        ({"limits", "landlock"}, ""),
        ({"limits", "user"}, ""),
    ]:
        monkeypatch.setattr(launch, "layers", lambda held=held: tuple(held))
        sentence = weakness() or ""
        assert re.search(expected, sentence) and bool(sentence) == bool(expected)


@pytest.mark.parametrize("depth", [1, 1100])  # the path exceeds the system's limit
def test_a_programs_files_are_removed_and_the_verdict_kept(depth, without, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    without("hook", "landlock", "seccomp", "user")
    deed = f"import os\nfor _ in range({depth}):\n    os.mkdir('aaaa')\n    os.chdir('aaaa')\n"
    closed = "os.mkdir('b', 0)\nos.close(os.open('c', os.O_CREAT))"
    assert judge(deed + closed, ("pass",), limits=GENEROUS)[0]
    assert not os.listdir(tmp_path)
