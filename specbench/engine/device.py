"""The device: its selection, its clock, and whether it still works."""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from functools import cache

import torch

from specbench.config import AUTO
from specbench.engine.choice import require_device
from specbench.errors import EngineError, UsageError, first_line

# glibc's numbers of parameters of ``mallopt``, and the value that keeps freed memory.
_KEEP = {-1: 2**31 - 1, -4: 0}  # M_TRIM_THRESHOLD, M_MMAP_MAX

Timestamp = float | torch.cuda.Event


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, else the CPU."""
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
    """Check after an error that a GPU still works, since an illegal access may break all calls."""
    if device.type != "cuda":
        return
    try:
        with suppress(RuntimeError):  # may only report the error once more
            run_kernel(device)
        run_kernel(device)
    except torch.OutOfMemoryError:
        pass  # works, but is full
    except RuntimeError as error:
        raise EngineError(
            f"{device} no longer works after an error ({first_line(error)}): start the command "
            "again, in a new process"
        ) from error


def run_kernel(device: torch.device) -> None:
    """Run a tiny kernel and wait for it."""
    torch.zeros(1, device=device).add_(1)
    torch.cuda.synchronize(device)
