"""The device: its selection, free memory, timing and bandwidth."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from specbench.config import AUTO
from specbench.engine.choice import require_device
from specbench.errors import EngineError, UsageError

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
MOST_COPIED = 2 * 2**30  # bytes of a buffer; larger buffers reach no higher bandwidth
FREE_SHARE = 8  # a buffer takes at most 1/8 of the free memory
WINDOWS, WINDOW_SECONDS = 5, 0.1
# glibc's numbers of parameters of ``mallopt``, and the value that keeps freed memory.
_KEEP = {-1: 2**31 - 1, -4: 0}  # M_TRIM_THRESHOLD, M_MMAP_MAX

Timestamp = float | torch.cuda.Event


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, else the CPU.

    Raises:
        UsageError: The device does not exist or is not supported.
    """
    require_device(name)
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"no device {name} here: use --device cpu or auto") from error
    return device


@cache
def keep_freed_memory() -> None:
    """Let this process reuse freed memory instead of returning it to the system.

    A round makes tensors of texts, drafts and vocabulary. Fresh memory for them costs a page fault
    for every 4 KiB: with 151,936 tokens and 16 texts more than half of the time of acceptance.
    """
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _KEEP.items():
            mallopt(parameter, value)


def timestamp(device: torch.device) -> Timestamp:
    """Return the current time of a device: seconds on a CPU, an event on a GPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Timestamp, end: Timestamp) -> float:
    """Return the seconds between two timestamps of one device."""
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin
    return float(begin.elapsed_time(end)) / 1000


def now(device: torch.device) -> float:
    """Synchronise with the device and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def require_working(device: torch.device) -> None:
    """Check after an error that a GPU still works; an illegal access makes every later call fail.

    Raises:
        EngineError: It does not.
    """
    if device.type != "cuda":
        return
    try:
        with suppress(RuntimeError):  # may only report the error once more
            run_kernel(device)
        run_kernel(device)
    except torch.OutOfMemoryError:
        pass  # works, but is full
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(". ")
        raise EngineError(
            f"{device} no longer works after an error ({reason}): start the command again, in a "
            "new process"
        ) from error


def run_kernel(device: torch.device) -> None:
    """Run a tiny kernel and wait for it."""
    torch.zeros(1, device=device).add_(1)
    torch.cuda.synchronize(device)


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Return the bandwidth of copying ``size`` bytes in bytes per second, reads plus writes.

    The best of several windows is taken, to exclude interference from other work. Large sizes are
    capped.
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
    """Return the free memory of a device in bytes; None if unknown.

    ``spread`` counts all GPUs, since a device map may use them all.
    """
    if device.type != "cuda":
        return min([*_system_memory(), *_container_memory()], default=None)
    if spread:
        return sum(map(_gpu_memory, range(torch.cuda.device_count())))
    return _gpu_memory(device)


def free_memory() -> None:
    """Release the memory that a failed sample left allocated."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _gpu_memory(device: torch.device | int) -> int:
    """Free bytes of a GPU, including those reserved but unused by this process."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def _system_memory() -> Iterator[int]:
    try:
        lines = MEMINFO.read_text().splitlines()
        yield next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, IndexError, StopIteration):
        return


def _container_memory() -> Iterator[int]:
    """The limit of the control group, less the memory that cannot be reclaimed."""
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        yield limit - used + int(counts["inactive_file"])
    except (OSError, ValueError, KeyError):  # no such group, or its limit is "max"
        return
