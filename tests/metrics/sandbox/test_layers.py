"""Every layer of the sandbox holds by itself, with all others that it could lean on taken away."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.metrics.sandbox import launch, seccomp
from specbench.metrics.sandbox.launch import Limits, judge, layers

KERNEL = {"namespaces", "user", "landlock", "seccomp"}
TEST = "assert done == 'done'"
DONE = "\ndone = 'done'\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="layers of the Linux kernel")

# Layer, and what it alone refuses.
REFUSED = [
    ("namespaces", "import socket; socket.create_connection(('127.0.0.1', {port}), 1)"),
    ("namespaces", "import os; os.kill({caller}, 0)"),
    ("user", "open({secret!r}).read()"),
    ("user", "import os; os.kill({caller}, 0)"),
    ("user", "import os; os.setuid(0)"),
    ("landlock", "open({public!r}).read()"),
    ("landlock", "open({public!r}, 'w')"),
    ("landlock", "open({public!r} + '2', 'w')"),
    ("landlock", "import os; os.remove({public!r})"),
    ("landlock", "open('new', 'w')"),
    ("seccomp", "import socket; socket.socket()"),
    ("seccomp", "import socket; socket.socketpair()"),
    ("seccomp", "import os; os.fork()"),
    ("seccomp", "import threading; threading.Thread(target=id, args=(1,)).start()"),
    ("seccomp", "import os; os.execv('/bin/true', ['true'])"),
    ("seccomp", "import os; os.kill(os.getpid(), 0)"),
    ("seccomp", "import os; os.setsid()"),
    ("seccomp", "open({public!r}, 'w')"),
    ("seccomp", "open({public!r} + '2', 'w')"),
    ("seccomp", "import os; os.mkdir({public!r} + '2')"),
    ("seccomp", "import os; os.remove({public!r})"),
    ("seccomp", "import os; os.rename({public!r}, {public!r} + '2')"),
    ("seccomp", "import os; os.chmod({public!r}, 0)"),
    ("seccomp", "import os; os.truncate({public!r}, 0)"),
    ("seccomp", "import os; os.symlink('a', {public!r} + '2')"),
    ("seccomp", "import os; os.memfd_create('a')"),
    ("seccomp", "import os; os.setpriority(os.PRIO_PROCESS, 0, 5)"),
]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, object]:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    public, secret = tmp_path / "public", tmp_path / "secret"
    for file, mode in ((public, 0o666), (secret, 0o600)):
        file.write_text("text")
        file.chmod(mode)
    return {"public": str(public), "secret": str(secret), "caller": os.getpid(), "port": 9}


@pytest.fixture
def only(without: Callable[..., None]) -> Callable[[str], None]:
    """Leave one layer of the kernel, where this machine has it."""

    def leave(layer: str) -> None:
        if layer not in layers():
            pytest.skip(f"this machine has no {layer}")
        without("hook", *KERNEL - {layer})

    return leave


@pytest.mark.parametrize(("layer", "deed"), REFUSED)
def test_a_layer_refuses_by_itself(
    layer: str, deed: str, only: Callable[[str], None], places: dict[str, object]
) -> None:
    if layer == "user" and "secret" in deed and not _reachable(Path(os.__file__).parent):
        pytest.skip("Python lies where only root may read, so the program keeps that right")
    only(layer)
    program = f"try:\n    {deed.format(**places)}\nexcept (OSError, RuntimeError):{DONE!s}"
    program = program.replace("\ndone", "\n    done")
    passed, held = judge(program, (TEST,), limits=Limits(2, 5.0))
    assert passed
    assert {*held} == {"limits", layer}
    assert Path(str(places["public"])).read_text() == "text"


@pytest.mark.parametrize(
    "deed",
    [
        "open({public!r}).read()",
        "open({public!r}, 'a').close()",
        "import socket; socket.socket()",
        "import os; os.kill({caller}, 0)",
        "import os; os.setsid()",
    ],
)
def test_without_layers_nothing_is_refused_but_what_limits_refuse(
    deed: str, without: Callable[..., None], places: dict[str, object]
) -> None:
    without("hook", *KERNEL)
    assert judge(deed.format(**places) + DONE, (TEST,), limits=Limits(2, 5.0)) == (
        True,
        ("limits",),
    )


@pytest.mark.parametrize(
    "deed",
    [
        "while True: pass",
        "x = bytes(300 << 20)",
        "open('big', 'wb', 0).write(b'x')",
        "x = [open('/dev/null') for _ in range(100)]",
    ],
)
def test_limits_hold_without_any_other_layer(deed: str, without: Callable[..., None]) -> None:
    without("hook", *KERNEL)
    start = time.perf_counter()
    passed, held = judge("x = 0\n" + deed + DONE, (TEST,), limits=Limits(1, 60.0))
    assert (passed, held) == (False, ("limits",))
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize(
    "deed", ["x = bytes(100 << 20)", "x = [open('/dev/null') for _ in range(40)]"]
)
def test_limits_leave_room(deed: str, without: Callable[..., None]) -> None:
    without("hook", *KERNEL)
    assert judge(deed + DONE, (TEST,), limits=Limits(1, 60.0))[0]


def test_layers_are_those_that_hold_around_programs(without: Callable[..., None]) -> None:
    assert set(layers()) <= {"limits"} | KERNEL and "limits" in layers()
    without("seccomp")
    assert set(judge("", ())[1]) == set(layers()) - {"seccomp"}


def test_a_program_of_another_machine_s_calls_has_no_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def machine(name: str) -> None:
        monkeypatch.setattr(seccomp.os, "uname", lambda: os.uname_result(("", "", "", "", name)))

    machine("riscv64")
    assert seccomp.instructions(False) == []
    machine("aarch64")
    arm = seccomp.instructions(False)
    machine("x86_64")
    assert arm != seccomp.instructions(False)
    # Both the supervisor's calls, each a comparison and what follows from it.
    assert len(seccomp.instructions(True)) == len(seccomp.instructions(False)) + 4


def test_supervisor_killed_from_outside_takes_its_program_along(
    alone: str, without: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = launch._start

    def kill_soon(*args: object) -> "subprocess.Popen[bytes]":
        started.append(start(*args))  # type: ignore[arg-type]
        subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -9 {started[0].pid}"])
        return started[0]

    monkeypatch.setattr(launch, "_start", kill_soon)
    passed, _ = judge("import time\ntime.sleep(60)", (), limits=Limits(2, 5.0))
    assert not passed and started[0].returncode == -9


def _reachable(folder: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))
