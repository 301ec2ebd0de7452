"""The state of the GPUs while something is measured: clocks, power, and who else uses them."""

from __future__ import annotations

import csv
import os
import subprocess
from typing import Any

_STATE = {
    "name": "name",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_watts": "power.draw",
    "power_limit_watts": "power.limit",
    "temperature_celsius": "temperature.gpu",
    "utilization_percent": "utilization.gpu",
}
_PROCESS = {"pid": "pid", "memory_mib": "used_memory"}


def gpu_states() -> list[dict[str, Any]]:
    """Return each GPU's clocks, power, temperature and load; nothing where no driver says."""
    return _query("--query-gpu", _STATE)


def other_processes() -> list[dict[str, Any]]:
    """Return the processes other than this one that compute on a GPU."""
    return [row for row in _query("--query-compute-apps", _PROCESS) if row["pid"] != os.getpid()]


def _query(what: str, fields: dict[str, str]) -> list[dict[str, Any]]:
    command = ["nvidia-smi", f"{what}={','.join(fields.values())}", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible and all(part.isdigit() or part.startswith("GPU-") for part in visible.split(",")):
        command.append(f"--id={visible}")  # the others of the machine are others' business
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = csv.reader(found.stdout.splitlines(), skipinitialspace=True)
    return [
        dict(zip(fields, map(_value, row), strict=True)) for row in rows if len(row) == len(fields)
    ]


def _value(text: str) -> Any:
    """A number where it is one; None where the driver does not say."""
    try:
        number = float(text)
    except ValueError:
        return None if text.startswith("[") or text == "N/A" else text
    return int(number) if number == int(number) else number
