"""What the driver's tool says of the GPUs, with a stand-in for the tool."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.experiment.gpus import gpu_states, other_processes

Driver = Callable[[str, str], None]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    def install(gpus: str, processes: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            f'#!/bin/sh\ncase "$1" in --query-gpu*) echo "{gpus}";; *) echo "{processes}";; esac\n'
        )
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return install


def test_clocks_power_and_load_are_numbers(driver: Driver) -> None:
    driver("NVIDIA H200, 1980, 1980, 3201, 91.25, 700.00, 31, 0", "")
    (state,) = gpu_states()
    assert state["name"] == "NVIDIA H200"
    assert (state["sm_clock_mhz"], state["power_watts"], state["power_limit_watts"]) == (
        1980,
        91.25,
        700,
    )
    assert other_processes() == []


def test_what_the_driver_does_not_say_is_none(driver: Driver) -> None:
    driver("A, [N/A], 1, 1, [Not Supported], 1, 1, 1", "")
    assert (gpu_states()[0]["sm_clock_mhz"], gpu_states()[0]["power_watts"]) == (None, None)


def test_only_other_processes_are_told(driver: Driver) -> None:
    driver("", f"{os.getpid()}, 900\n4242, 512")
    assert other_processes() == [{"pid": 4242, "memory_mib": 512}]


@pytest.mark.parametrize("gpus", ["", "NVIDIA-SMI has failed because it could not communicate"])
def test_without_a_driver_there_is_nothing(driver: Driver, gpus: str) -> None:
    driver(gpus, gpus)
    assert gpu_states() == other_processes() == []


def test_without_the_tool_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpu_states() == other_processes() == []
