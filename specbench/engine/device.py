"""The device: choosing it, its free memory, its clock and its bandwidth."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from specbench.config import AUTO
from specbench.errors import UsageError

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
MOST_COPIED = 2 * 2**30  # bytes of a buffer; a larger one is no slower to copy
FREE_SHARE = 8  # a buffer takes no more than this part of the free memory
WINDOWS, WINDOW_SECONDS = 5, 0.1

Timestamp = float | torch.cuda.Event


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, else the CPU.

    Raises:
        UsageError: It is not there, or nothing can be decoded on it.
    """
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"no device {name} here: use --device cpu or auto") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"cannot decode on {name}: use --device cpu, cuda or auto")
    return device


def timestamp(device: torch.device) -> Timestamp:
    """Return the present time of a device: seconds on a CPU, an event in the work of a GPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Timestamp, end: Timestamp) -> float:
    """Return the seconds between two timestamps that one device has passed."""
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin
    return float(begin.elapsed_time(end)) / 1000


def now(device: torch.device) -> float:
    """Return seconds on a clock that has waited for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Return the bytes per second that a copy of ``size`` bytes reads and writes together.

    The best of several windows: what the device can do, not what else it was doing. A large size is
    limited.
    """
    free = available_memory(device)
    size = min(size, MOST_COPIED, (free or FREE_SHARE * MOST_COPIED) // FREE_SHARE)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    copy = torch.zeros_like(source)

    def rate(times: int) -> float:
        began = now(device)
        for _ in range(times):
            copy.copy_(source)
        return 2 * size * times / (now(device) - began)

    rate(3)
    times = max(1, round(WINDOW_SECONDS * rate(3) / (2 * size)))
    return max(rate(times) for _ in range(WINDOWS))


def available_memory(device: torch.device, spread: bool = False) -> int | None:
    """Return the bytes that are free on a device; None where that cannot be found out.

    With ``spread``, all GPUs count, as a device map may use them all.
    """
    if device.type != "cuda":
        return min([*_system_memory(), *_container_memory()], default=None)
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
