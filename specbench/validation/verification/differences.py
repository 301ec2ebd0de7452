"""Differences between what a run records and what follows from something else."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Any

from specbench.runs.labels import method_label
from specbench.validation.findings import FAILED, OK, Finding

ROUNDING = 1e-9  # relative difference of equal numbers; sums may be added in another order

Record = Mapping[str, Any]


def difference(recorded: Any, derived: Any, within: float = 0.0) -> str:
    """Return the first place where two plain values differ, with both; empty if they are equal.

    Objects are compared by their common keys. Numbers are equal up to rounding, or up to an
    absolute difference ``within``.
    """
    if isinstance(recorded, Mapping) and isinstance(derived, Mapping):
        for name in (name for name in derived if name in recorded):
            if text := difference(recorded[name], derived[name], within):
                return f"{name}{text}" if text[0] in " [" else f"{name}.{text}"
        return ""
    if isinstance(recorded, list) and isinstance(derived, list):
        for index, pair in enumerate(zip(recorded, derived, strict=False)):
            if text := difference(*pair, within):
                return f"[{index}]{text}"
        same_length = len(recorded) == len(derived)
        return "" if same_length else f" has length {len(recorded)}, not {len(derived)}"
    if isinstance(recorded, int | float) and isinstance(derived, int | float):
        same = math.isclose(recorded, derived, rel_tol=ROUNDING, abs_tol=within)
        return "" if same else f" is {recorded:.12g}, not {derived:.12g}"
    if isinstance(recorded, str) and isinstance(derived, str) and recorded != derived:
        first = next(
            index for index in count() if recorded[index : index + 1] != derived[index : index + 1]
        )
        index = max(first - 10, 0)
        start = f"[{index}:]" if index else ""
        return f"{start} is {recorded[index : index + 30]!r}, not {derived[index : index + 30]!r}"
    return "" if recorded == derived else f" is {recorded!r}, not {derived!r}"


def finding(name: str, subject: str, differences: Iterable[tuple[Record, str]]) -> Finding:
    """Return the finding of a check of many samples, which names the first one that differs."""
    return finding_of(name, subject, [f"{named(row)}: {text}" for row, text in differences if text])


def finding_of(name: str, subject: str, faults: Collection[str]) -> Finding:
    """Return the finding of a check with these faults, which quotes the first."""
    if not faults:
        return Finding("", subject, name, OK, "")
    more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
    return Finding("", subject, name, FAILED, next(iter(faults)) + more)


def named(row: Record) -> str:
    """Return the name of a sample, or of a row of the summary."""
    values = {name: None if value == "" else value for name, value in row.items()}
    length = f"N = {values['draft_length']:g}" if values["draft_length"] else ""
    repeat = f"repeat {values['repeat']:g}" if values.get("repeat") else ""
    turn = f"turn {values['turn']:g}" if values.get("turn") else ""
    last = values.get("sample_id") or values.get("metric")
    return ", ".join(
        filter(None, [values["task"], method_label(values), length, last, turn, repeat])
    )
