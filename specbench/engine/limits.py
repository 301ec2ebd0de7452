"""What this process may use of the machine: cores and memory, by control groups and affinity.

A control group of version 2 has files such as ``cpu.max``; those of version 1 are in a hierarchy
for each controller. The limits of outer groups hold too.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
STAT = Path("/proc/stat")  # of Linux, with the ticks of all cores in its first line
MEMBERSHIP = Path("/proc/self/cgroup")  # lines such as 4:cpu,cpuacct:/group, and 0::/group


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its quota."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def busy_share(seconds: float = 0.25) -> float:
    """Return the share of all cores that other processes use while this one waits; 0 if unknown."""

    def ticks() -> tuple[int, int]:
        """Return the ticks of all cores since the start of the machine, and the idle ones."""
        user, nice, system, idle, waiting, *further = map(int, STAT.read_text().split()[1:9])
        return sum((user, nice, system, idle, waiting, *further)), idle + waiting

    try:
        total, idle = ticks()
        time.sleep(seconds)
        later_total, later_idle = ticks()
    except (OSError, ValueError):  # not Linux
        return 0.0
    return round(1 - (later_idle - idle) / max(1, later_total - total), 2)


def cpu_quota() -> float | None:
    """Return how many cores' time the process may use; None without a quota."""
    quotas = []
    for folder in _folders("cpu"):
        if pair := _read(folder, "cpu.max"):
            quota, _, period = pair.partition(" ")
        else:
            quota, period = (_read(folder, f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():  # neither "max" nor -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def free_memory() -> int | None:
    """Return the least limit on memory, less what cannot be reclaimed, in bytes; None without."""
    free = []
    for folder in _folders("memory"):
        for limit, usage, idle in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, used = _read(folder, limit), _read(folder, usage)
            stat = dict(line.split() for line in _read(folder, "memory.stat").splitlines())
            if most.isdigit() and used.isdigit() and idle in stat:
                free.append(int(most) - int(used) + int(stat[idle]))
    return min(free, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of the groups that may limit a controller, with their outer ones."""
    try:
        lines = [line.split(":", 2) for line in MEMBERSHIP.read_text().splitlines()]
    except OSError:
        lines = []
    # In a container, the path may be that of the host: then only the root is there.
    groups: dict[Path, tuple[Path, ...]] = {Path(): (ROOT, ROOT / "unified", ROOT / controller)}
    for _, names, path in lines:
        if not names or controller in names.split(","):
            inner = Path(path.lstrip("/"))
            version = (ROOT / names, ROOT / controller) if names else (ROOT, ROOT / "unified")
            groups |= {group: version for group in (inner, *inner.parents) if group != Path()}
    yield from dict.fromkeys(root / group for group, roots in groups.items() for root in roots)


def _read(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return ""
