"""How far computed speed-ups were off where others measured them, by what was measured.

``tasks/measure/public_measurements.py`` writes the table.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

TRIED_FILE = Path(__file__).with_name("tried.csv")
EVERYTHING = ("all", "all", "all")
FEWEST = 5  # measurements of which the ninth decile says something
OUTSIDE = 0.25  # error in nine of ten that is assumed for what was not tried


class Sure(NamedTuple):
    """How sure a computed speed-up is."""

    error: float  # relative, in nine of ten
    words: str


def batches_like(batch: float) -> str:
    """Return the range of batch sizes that a batch belongs to."""
    return "1 to 8" if batch <= 8 else "9 to 64" if batch <= 64 else "from 65"


@cache
def tried() -> dict[tuple[str, str, str], Any]:
    """Return a row of errors by kind of machine, drafter and range of batch sizes."""
    return {row[1:4]: row for row in pd.read_csv(TRIED_FILE).itertuples()}


def how_sure(machine: str, drafter: str, batch: float) -> Sure:
    """Return how far such computed speed-ups were off.

    The error is at least that of all measurements, since another machine of a kind may differ.
    """
    every, here = tried()[EVERYTHING], tried().get((machine, drafter, batches_like(batch)))
    in_general = f"within {100 * every.ninth_decile:.0f} % in nine of ten"
    if here is None or here.rows < FEWEST:
        return Sure(
            OUTSIDE,
            "Computed; never compared with measurements of such a machine with such a drafter and "
            f"batch, so {100 * OUTSIDE:.0f} % off is possible (all {every.rows} measurements: "
            f"{in_general})",
        )
    error = max(here.ninth_decile, every.ninth_decile)
    return Sure(
        error,
        f"Computed; within {100 * error:.0f} % in nine of ten: {here.rows} measurements with such "
        f"a drafter and batch on such machines ({here.machines}) were within "
        f"{100 * here.ninth_decile:.0f} %, and all {every.rows} {in_general}",
    )
