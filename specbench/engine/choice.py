"""The choice of device and engine, as far as it can be made before PyTorch is imported."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

from specbench.config import AUTO, COMPILE, EAGER, GRAPH, LLAMACPP
from specbench.errors import UsageError

CPU, CUDA = "cpu", "cuda"


@cache
def has_gpu_driver() -> bool:
    """Return whether a driver of NVIDIA or AMD is installed, without which PyTorch has no GPU.

    The driver is not initialised, so there may be no GPU although there is a driver.
    """
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()
    return True


def require_device(name: str) -> None:
    """Refuse a device that PyTorch cannot have here; one that passes may still not exist."""
    kind = name.partition(":")[0]
    if kind not in (AUTO, CPU, CUDA) or (kind == CUDA and not has_gpu_driver()):
        raise UsageError(f"no device {name} here: use --device cpu or auto")


def require_engine(name: str, device: str, spread: bool = False, gguf: bool = False) -> None:
    """Refuse a device or an engine that this machine cannot have; see ``choose_engine``."""
    require_device(device)
    if device == AUTO:
        device = CUDA if has_gpu_driver() else CPU
    choose_engine(name, device, spread, gguf)


def choose_engine(name: str, device: str, spread: bool = False, gguf: bool = False) -> str:
    """Return the engine for a device, for layers spread over several devices, or for GGUF files."""
    if gguf and name in (AUTO, LLAMACPP):
        return LLAMACPP
    if gguf or name == LLAMACPP:
        needs_llamacpp = f"GGUF files need --engine {LLAMACPP}, not {name}: omit it"
        other = f"--engine {LLAMACPP} runs GGUF files only: see the page engine"
        raise UsageError(needs_llamacpp if gguf else other)
    possible = device.partition(":")[0] == CUDA and not spread
    if name == AUTO:
        return GRAPH if possible else EAGER
    if name == GRAPH and not possible:
        devices = "layers spread over devices" if spread else f"the device {device}"
        raise UsageError(
            f"--engine {GRAPH} needs one CUDA device, not {devices}: choose {EAGER} or {COMPILE}"
        )
    return name
