"""How much memory is free, on a GPU or for this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_memory(device: torch.device, spread: bool = False) -> int | None:
    """Return the bytes that are free on a device; None where that cannot be found out.

    Args:
        device: Where the models are to be.
        spread: Count all GPUs, as a device map may use them all.
    """
    if device.type != "cuda":
        return _main_memory()
    if spread:
        return sum(map(_gpu_memory, range(torch.cuda.device_count())))
    return _gpu_memory(device)


def free_memory() -> None:
    """Give back what a failed sample left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _gpu_memory(device: torch.device | int) -> int:
    """Free bytes of a GPU and those that this process holds without using them."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def _main_memory() -> int | None:
    """What the system has to give, and no more than what is left to this container."""
    return min([*_system_memory(), *_container_memory()], default=None)


def _system_memory() -> Iterator[int]:
    try:
        lines = MEMINFO.read_text().splitlines()
        yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, IndexError, StopIteration):
        return


def _container_memory() -> Iterator[int]:
    """The limit of the control group, less what is used and cannot be given back."""
    try:
        limit, used = (
            int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current")
        )
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        yield limit - used + int(counts["inactive_file"])
    except (OSError, ValueError, KeyError):  # no such group, or its limit is "max"
        return
