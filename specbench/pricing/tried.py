"""How far computed speed-ups were off where others measured them, by what was measured.

``tasks/measure/public_measurements.py`` writes the table.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

TRIED_FILE = Path(__file__).with_name("tried.csv")
LARGEST = (8, 64)  # of a range of batch sizes
EVERYTHING = ("all", "all", "all")
FEWEST = 5  # measurements of which the ninth decile says something
OUTSIDE = 0.25  # error in nine of ten that is assumed for what was not tried


class Tried(NamedTuple):
    """Errors of computed speed-ups, relative to the measured ones."""

    machines: str
    rows: int
    median: float
    ninth_decile: float


def batches_like(batch: float) -> str:
    """Return the range of batch sizes that a batch belongs to."""
    first = 1
    for last in LARGEST:
        if batch <= last:
            return f"{first} to {last}"
        first = last + 1
    return f"from {first}"


@cache
def tried() -> dict[tuple[str, str, str], Tried]:
    """Return the errors by kind of machine, drafter and range of batch sizes."""
    with TRIED_FILE.open(encoding="utf-8", newline="") as file:
        return {
            (row["kind"], row["drafts_by"], row["batches"]): Tried(
                row["machines"], int(row["rows"]), float(row["median"]), float(row["ninth_decile"])
            )
            for row in csv.DictReader(file)
        }


def like(machine: str, drafter: str, batch: float) -> Tried | None:
    """Return the errors with such machines, drafters and batches; None if too few were tried."""
    errors = tried().get((machine, drafter, batches_like(batch)))
    return errors if errors and errors.rows >= FEWEST else None


def error_of(machine: str, drafter: str, batch: float) -> float:
    """Return the error in nine of ten at a setting, or what is assumed where none was tried.

    It is at least that of all measurements, since another machine of a kind may differ.
    """
    errors = like(machine, drafter, batch)
    return max(errors.ninth_decile, tried()[EVERYTHING].ninth_decile) if errors else OUTSIDE


def how_sure(machine: str, drafter: str, batch: float) -> str:
    """Say how far such computed speed-ups were off."""
    if errors := like(machine, drafter, batch):
        return (
            f"Computed; on {errors.rows} measurements with such a drafter and batch on such "
            f"machines ({errors.machines}) within {100 * errors.ninth_decile:.0f} % in nine of ten"
        )
    every = tried()[EVERYTHING]
    return (
        "Computed; never compared with measurements of such a machine with such a drafter and "
        f"batch, so {100 * OUTSIDE:.0f} % off is possible (all {every.rows} measurements: within "
        f"{100 * every.ninth_decile:.0f} % in nine of ten)"
    )
