"""Moments on the clock of a device, taken without waiting for it."""

from __future__ import annotations

import time

import torch

Moment = float | torch.cuda.Event


def moment(device: torch.device) -> Moment:
    """Return this moment of a device: seconds on a CPU, an event in the work of a GPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Moment, end: Moment) -> float:
    """Return the seconds between two moments of one device, which must have passed both."""
    if isinstance(begin, float) or isinstance(end, float):
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin
    return float(begin.elapsed_time(end)) / 1000


def now(device: torch.device) -> float:
    """Return seconds on a clock that has waited for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
