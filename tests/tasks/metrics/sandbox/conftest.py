"""Running programs: with generous limits, and with chosen layers removed."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specbench.tasks.metrics.sandbox import launch
from specbench.tasks.metrics.sandbox.launch import Limits, judge

# A slow and busy machine must end an honest program in time.
GENEROUS = Limits(cpu_seconds=60, wall_seconds=600.0)
DATA = Path(__file__).parents[3] / "data" / "sandbox"


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def programs(name: str) -> dict[str, str]:
    """Return the programs of a file by the names above them."""
    _, *parts = re.split(r"^### (.+)\n", text_of(name), flags=re.MULTILINE)
    return dict(zip(parts[::2], (part.removesuffix("\n") for part in parts[1::2]), strict=True))


def with_tests(name: str) -> list[tuple[str, ...]]:
    rows = (row.removesuffix("\n").split("\n---\n") for row in text_of(name).split("===\n"))
    return [(program, test) for program, test in rows]


def lines_of(name: str) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in text_of(name).splitlines()]


# Code that removes a layer from the supervisor; every layer must hold without the audit hook.
_WITHOUT = {
    "hook": "supervisor.refuse = lambda *args: None",
    "namespaces": "supervisor.linux.own_namespaces = lambda: False",
    "user": "supervisor.linux.become_nobody = lambda *args: False",
    "landlock": "supervisor.linux.read_only = lambda *args, **named: False",
    "seccomp": "supervisor.linux.filter_calls = lambda *args: False",
    # Not a layer: whether the user nobody may read Python's library.
    "private library": "supervisor.linux.os.access = lambda *args: False",
    "public library": "supervisor.linux.os.access = lambda *args: True",
}


@pytest.fixture
def without(monkeypatch) -> Callable[..., None]:
    def take(*layers: str) -> None:
        patches = "; ".join([*(_WITHOUT[layer] for layer in layers), "supervisor.main()"])
        monkeypatch.setattr(launch, "_BOOT", launch._BOOT.replace("supervisor.main()", patches))

    return take


@pytest.fixture
def passes() -> Callable[..., bool]:
    return lambda program, *tests, entry_point="": judge(program, tests, entry_point, GENEROUS)[0]


@pytest.fixture
def alone(monkeypatch, tmp_path) -> Iterator[str]:
    """A word in the command line of each sandbox process; at the end none may be left."""
    word = f"marker-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setattr(launch, "_BOOT", f"{launch._BOOT}  # {word}")
    assert not running(word)
    yield word
    for _ in range(3000):  # the kernel may need a moment for killed processes
        if not running(word):
            break
        time.sleep(0.02)
    assert not running(word)


def running(word: str) -> list[str]:
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if word in (folder / "cmdline").read_bytes().decode(errors="replace"):
                processes.append(folder.name)
    return processes
