"""What a device has: free memory, and the bandwidth of copying."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

import torch

from specbench.engine import limits
from specbench.engine.device import now

MEMINFO, AVAILABLE = Path("/proc/meminfo"), "MemAvailable"
MOST_COPIED = 2 * 2**30  # bytes of a buffer; larger buffers reach no higher bandwidth
FREE_SHARE = 8  # a buffer takes at most 1/8 of the free memory
WINDOWS, WINDOW_SECONDS = 5, 0.1


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
        free = [limits.free_memory()]
        with suppress(OSError, ValueError, IndexError):
            lines = MEMINFO.read_text().splitlines()
            free += [int(line.split()[1]) * 1024 for line in lines if line.startswith(AVAILABLE)]
        return min((size for size in free if size is not None), default=None)
    cuda = torch.cuda
    # Memory that is reserved but unused by this process is free to it.
    return sum(
        cuda.mem_get_info(gpu)[0] + cuda.memory_reserved(gpu) - cuda.memory_allocated(gpu)
        for gpu in (range(cuda.device_count()) if spread else [device])
    )


def free_memory() -> None:
    """Release the memory that a failed sample left allocated."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
