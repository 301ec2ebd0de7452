"""The environment of a run: versions, hardware, threads, git state and command line.

Values that cannot be determined are recorded as "unknown"; a run never fails because of them.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from specbench import __version__
from specbench.errors import KEY_MASK, mask_tokens

UNKNOWN = "unknown"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "datasets", "numpy", "pandas"),
    *("rouge-score", "sacrebleu", "xllamacpp"),
)
# Variables that affect speed or results but are not on the command line.
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE")


def describe_environment() -> dict[str, Any]:
    """Describe this process and machine in values for JSON."""
    return {
        "specbench": __version__,
        "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "command": command_line(),
        "git": git_state(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cpu": {"model": cpu_model(), "logical_cores": os.cpu_count() or UNKNOWN},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "torch": _torch_state(),
    }


def command_line() -> list[str]:
    """Return the command as typed, with tokens and keys masked."""
    words = ["specbench", *map(mask_tokens, sys.argv[1:])]
    return [
        re.sub(r"^((?:--header=)?[^=]*=).*", rf"\1{KEY_MASK}", word)
        if "--header" in (previous, word.partition("=")[0])
        else word
        for previous, word in pairwise(["", *words])
    ]


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as reported by the operating system."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or UNKNOWN


def git_state(folder: Path) -> dict[str, Any]:
    """Return the commit of a source folder and whether there are uncommitted changes."""
    git = partial(_output, "git", "-C", str(folder))
    if not git("ls-files", "__init__.py"):  # not tracked, even if it is inside a repository
        return {"commit": UNKNOWN, "dirty": UNKNOWN}
    changes = git("status", "--porcelain", "--", ".", "../tasks")
    return {
        "commit": git("rev-parse", "HEAD") or UNKNOWN,
        "dirty": UNKNOWN if changes is None else bool(changes),
    }


def other_processes() -> list[dict[str, Any]]:
    """Return the other processes that use a GPU, with its memory if the driver tells."""
    command = [
        "nvidia-smi",
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader,nounits",
    ]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible and all(part.isdigit() or part.startswith("GPU-") for part in visible.split(",")):
        command.append(f"--id={visible}")  # only the GPUs of this process
    rows = re.findall(r"^(\d+), *(\d*)", _output(*command) or "", re.MULTILINE)
    return [
        {"pid": int(pid), "memory_mib": int(memory) if memory else None}
        for pid, memory in rows
        if int(pid) != os.getpid()
    ]


def _torch_state() -> Mapping[str, Any]:
    """Return threads and accelerators; torch is already imported at this point."""
    import torch

    state: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }
    if torch.cuda.is_available():
        from specbench.engine.loading import enabled_backends

        state["cuda"] = torch.version.cuda
        state["cudnn"] = torch.backends.cudnn.version()
        state["attention_backends"] = enabled_backends()
        state["gpus"] = [
            {"name": gpu.name, "memory_bytes": gpu.total_memory}
            for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
        driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        state["driver"] = driver or UNKNOWN
    return state


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _output(*command: str) -> str | None:
    """Return the output of a command, or None if it fails or does not exist."""
    try:
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None
