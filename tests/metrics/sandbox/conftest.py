"""Running hostile programs: with short limits, and with chosen layers taken away."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specbench.metrics.sandbox import launch
from specbench.metrics.sandbox.launch import Limits, judge

SHORT = Limits(cpu_seconds=1, wall_seconds=1.5)

# How the supervisor is made to do without a layer; the audit hook is one that all must spare.
_WITHOUT = {
    "hook": "supervisor.refuse = lambda *args: None",
    "namespaces": "supervisor.linux.own_namespaces = lambda: False",
    "user": "supervisor.linux.become_nobody = lambda *args: False",
    "landlock": "supervisor.linux.read_only = lambda *args, **named: False",
    "seccomp": "supervisor.linux.filter_calls = lambda *args: False",
    # Not layers, but whether nobody may read Python's library.
    "private library": "supervisor.linux.os.access = lambda *args: False",
    "public library": "supervisor.linux.os.access = lambda *args: True",
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Take layers away by their names; those named must exist."""

    def take(*layers: str) -> None:
        patches = "; ".join([*(_WITHOUT[layer] for layer in layers), "supervisor.main()"])
        monkeypatch.setattr(launch, "_BOOT", launch._BOOT.replace("supervisor.main()", patches))

    return take


@pytest.fixture
def passes() -> Callable[..., bool]:
    """Run a program under short limits and tell whether it passed."""
    return lambda program, *tests, entry_point="": judge(program, tests, entry_point, SHORT)[0]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A word in the command line of each process of the sandbox; at the end none is left."""
    word = f"marker-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setattr(launch, "_BOOT", f"{launch._BOOT}  # {word}")
    assert not running(word)
    yield word
    for _ in range(100):  # the kernel may need a moment for those that it has killed
        if not running(word):
            break
        time.sleep(0.02)
    assert not running(word)


def running(word: str) -> list[str]:
    """Return the processes with a word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if word in (folder / "cmdline").read_bytes().decode(errors="replace"):
                found.append(folder.name)
    return found
