"""How far computed speed-ups of a kind were off where other people measured them.

Each person counts once, whatever the number of their rows. ``tasks/measure/public_measurements.py``
writes both tables.
"""

from __future__ import annotations

from functools import cache
from math import exp, sqrt
from pathlib import Path
from typing import NamedTuple, Self

import pandas as pd
from scipy.special import stdtrit

from specbench.pricing.machines import Deployment
from specbench.pricing.shapes import ServedModel

ERRORS_FILE = Path(__file__).with_name("errors.csv")
LENGTHS_FILE = Path(__file__).with_name("lengths.csv")
FEWEST = 3  # people of whose errors a bound is made
# Standard deviation of the logarithm of predicted over measured: .16 between people and machines,
# and .09 between the rows of one, in 216 rows of 23 people, before any
# number was found on them.
SPREAD = sqrt(0.16**2 + 0.09**2)
NORMAL = 1.645  # nine of ten lie within so many standard deviations
LARGEST = 1.5  # beyond this factor there is no number
CHIPS = {"cuda": "NVIDIA", "rocm": "AMD", "metal": "Apple", "xpu": "Intel"}


class Kind(NamedTuple):
    """What decides how far a computed speed-up may be off."""

    engine: str  # and its age
    layers: str  # dense, or experts
    weights: int  # bits: 16, 8, or 4 for all that are fewer
    cache: int  # bits: 16 or 8
    chip: str  # whose kernels
    drafter: str

    @classmethod
    def of(cls, server: Deployment, target: ServedModel, drafter: str) -> Self:
        """Return the kind of a served model and what drafts for it."""
        bits, of_cache = target.precision.layers, target.precision.cache
        return cls(
            server.engine.measured_as or server.engine.description,
            "experts" if target.shape.experts else "dense",
            16 if bits >= 16 else 8 if bits >= 8 else 4,
            16 if of_cache >= 16 else 8,
            CHIPS[server.machine.backend],
            drafter,
        )

    def __str__(self) -> str:
        return (
            f"{self.engine} on {self.chip}, {self.layers}, {self.weights}-bit weights and "
            f"{self.cache}-bit cache, {self.drafter}"
        )


class Bound(NamedTuple):
    """Nine of ten measurements of a kind are within this factor of what is computed."""

    kind: Kind
    factor: float
    people: int  # who measured the kind

    @property
    def is_open(self) -> bool:
        """Whether no number is given: kernels and routing differ too much to be computed."""
        return self.kind.chip != "NVIDIA" or self.kind.layers != "dense" or self.factor > LARGEST

    def __str__(self) -> str:
        by, who = f"by {self.people} people", ""
        if self.people < FEWEST:
            number = ("nobody", "one group", "two groups")[self.people]
            by, who = "of any kind", f"{number} measured this kind: "
        start = f"Computed; 9 of 10 measurements {by} are within a factor {self.factor:.2f} of it"
        return f"{start};\n{who}{self.kind}"


@cache
def errors() -> pd.DataFrame:
    """Return the errors of each person and kind: rows, and the root of the mean square."""
    return pd.read_csv(ERRORS_FILE)


def bound(kind: Kind, without: str = "") -> Bound:
    """Return the bound for a kind by all people but one.

    With the root mean square r of the logarithmic errors of k people, a further one is within
    t r sqrt(1 + 1 / k) in nine of ten, where t is Student's quantile.
    """
    table = errors()
    is_kind = (table[[*Kind._fields]] == pd.Series(kind._asdict())).all(axis=1)
    people = table[is_kind & (table["person"] != without)].groupby("person")["rms"].max()
    number, half = len(people), NORMAL * SPREAD
    if number >= FEWEST:
        half = float(stdtrit(number, 0.95) * sqrt((people**2).mean() * (1 + 1 / number)))
    return Bound(kind, exp(half), number)


def usual_lengths(drafter: str) -> list[str]:
    """Return what others measured with a drafter, by source and workload, as sentences."""
    table = pd.read_csv(LENGTHS_FILE)
    rows = table[table["drafter"] == drafter].sort_values("rows", ascending=False, kind="stable")
    return [
        f"{row.median:.2f} ({row.least:.2f} to {row.most:.2f}), N = {row.drafts}, {row.workload}, "
        f"n = {row.rows}, {row.source.partition('/')[2 if '#' in row.source else 0]}"
        for row in rows.itertuples()
    ]
