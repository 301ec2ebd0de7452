"""Cores and memory that control groups, affinity and other processes leave."""

import logging
import os
from pathlib import Path

import pytest
import torch

from specbench.engine import limits, loading
from specbench.engine.pairs import Loading

MAX = "9223372036854771712"  # no limit in version 1
STAT = "anon 800000\ninactive_file 200000\ntotal_inactive_file 300000\n"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write(root: Path, membership: str, files: dict[str, str]) -> None:
    (root / "membership").write_text(membership)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")


V1 = {"cpu/a/cpu.cfs_period_us": "100000", "cpu/a/b/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4),
        ("0::/on/the/host", {"cpu.max": "200000 100000"}, 2),  # seen from inside a container
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("4:cpu,cpuacct:/a", {**V1, "cpu/a/cpu.cfs_quota_us": "100000"}, 1),
        ("1:cpu:/a/b\n0::/", {**V1, "cpu/a/cpu.cfs_quota_us": "50000"}, 0.5),
        ("1:cpu:/a/b", {**V1, "cpu/a/b/cpu.cfs_quota_us": "-1"}, None),
        ("1:cpuset:/a", {**V1, "cpu/a/cpu.cfs_quota_us": "100000"}, None),  # another controller's
        ("0::/x", {"unified/x/cpu.max": "300000 100000"}, 3),
        ("", {}, None),
    ],
)
def test_the_least_quota_of_a_group_and_its_outer_ones_holds(membership, files, quota, root):
    write(root, membership, files)
    assert limits.cpu_quota() == quota


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        (
            "0::/",
            {"memory.max": "3000000", "memory.current": "1000000", "memory.stat": STAT},
            2.2e6,
        ),
        (
            "4:memory:/a",
            {
                "memory/a/memory.limit_in_bytes": "3000000",
                "memory/a/memory.usage_in_bytes": "1000000",
                "memory/a/memory.stat": STAT,
                "memory/memory.limit_in_bytes": MAX,
                "memory/memory.usage_in_bytes": "5000000",
                "memory/memory.stat": STAT,
            },
            2.3e6,
        ),
        ("0::/", {"memory.max": "max", "memory.current": "1", "memory.stat": STAT}, None),
    ],
)
def test_the_least_memory_of_a_group_and_its_outer_ones_is_free(membership, files, free, root):
    write(root, membership, files)
    assert limits.free_memory() == free


@pytest.mark.parametrize(
    ("affinity", "quota", "busy", "threads", "width", "used", "noted"),
    [
        (8, None, 0.0, None, 512, 8, False),
        (3, None, 0.0, None, 512, 3, False),
        (8, 1.0, 0.0, None, 512, 1, False),
        (8, 2.5, 0.0, None, 1024, 2, False),
        (8, 0.5, 0.0, None, 512, 1, False),
        (8, None, 0.5, None, 512, 4, True),
        (8, None, 1.0, None, 512, 1, True),
        (8, 2.0, 0.5, None, 512, 2, False),  # four cores are idle
        (8, 1.0, 1.0, 6, 512, 6, False),
        (8, None, 1.0, None, 256, 1, False),
    ],
)
def test_threads_have_a_core_each(
    affinity, quota, busy, threads, width, used, noted, monkeypatch, caplog
):
    chosen = [8]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(limits, "cpu_quota", lambda: quota)
    monkeypatch.setattr(loading, "busy_share", lambda: busy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    with caplog.at_level(logging.WARNING):
        loading.set_threads(Loading(threads=threads), width)
    assert chosen[-1] == used
    assert ("--threads" in caplog.text) == noted
