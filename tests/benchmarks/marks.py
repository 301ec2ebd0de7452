"""Hold a benchmark's results against the marks that the project promises.

    python tests/benchmarks/marks.py RESULTS [--engine NAME]

RESULTS is the folder of ``specbench bench``; marks that it does not measure are left blank.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table

from specbench.bench.tables import (
    OVER_AUTOREGRESSIVE,
    OVER_ONE,
    OVER_TRANSFORMERS,
    RATIOS,
    ROUND_OVER_SD,
    TABLE,
    Ratio,
)

AUTOREGRESSIVE, SD, DIVERSED = "autoregressive", "sd", "diversed"
ON_CPU = {"eager": (1.4, 1.6), "compile": (1.8, 2.4)}


class Mark(NamedTuple):
    """What is promised: a number that is to be at least, or at most, another."""

    text: str
    asked: float
    measured: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.measured <= self.asked if self.at_most else self.measured >= self.asked


class Results:
    """A benchmark's tables, of one engine, at N = 5 where anything is drafted."""

    def __init__(self, folder: Path, engine: str) -> None:
        wanted = "engine == @engine and draft_length in [0, 5]"
        self.table = pd.read_csv(folder / TABLE).query(wanted)
        self.ratios = pd.read_csv(folder / RATIOS).query(wanted)

    def figure(self, column: str, method: str) -> float:
        """A column of a method at batch 1, the mean over forced acceptances."""
        return float(self.table.query("method == @method and batch_size == 1")[column].mean())

    def ratio(
        self, kind: Ratio, method: str, acceptance: float | None = None, batch_size: int = 1
    ) -> float:
        """A ratio of a method, at one forced acceptance or the mean over all."""
        found = self.ratios[self.ratios["ratio"] == kind.name]
        found = found.query("method == @method and batch_size == @batch_size")
        if acceptance is not None:
            found = found.query("forced_acceptance == @acceptance")
        return float(found["value"].mean())


def gpu_marks(results: Results) -> Iterator[Mark]:
    """The marks of a GPU: N = 5, batch 1 where nothing else is said."""
    yield Mark(
        "autoregressive: share of the copy bandwidth",
        0.80,
        results.figure("limit_share", AUTOREGRESSIVE),
    )
    share = results.figure("limit_share", SD)
    yield Mark("sd: a round over its bandwidth limit", 1.4, 1 / share, at_most=True)
    yield Mark(
        "diversed: a round over that of sd",
        1.03,
        results.ratio(ROUND_OVER_SD, DIVERSED),
        at_most=True,
    )
    yield Mark(
        "sd: tokens/s over assisted generation, acceptance 0.7",
        4,
        results.ratio(OVER_TRANSFORMERS, SD, 0.7),
    )
    yield Mark(
        "sd: tokens/s over autoregressive, acceptance 0.8",
        1.7,
        results.ratio(OVER_AUTOREGRESSIVE, SD, 0.8),
    )
    for method in (AUTOREGRESSIVE, SD):
        yield Mark(
            f"{method}: tokens/s at batch 32 over batch 1",
            12,
            results.ratio(OVER_ONE, method, batch_size=32),
        )


def cpu_marks(results: Results, engine: str) -> Iterator[Mark]:
    """The marks of a CPU: N = 5, batch 1."""
    for method, asked in zip((AUTOREGRESSIVE, SD), ON_CPU[engine], strict=True):
        measured = results.ratio(OVER_TRANSFORMERS, method)
        yield Mark(f"{method}: tokens/s over Transformers' own", asked, measured)


def main() -> None:
    """Print mark, what was asked, what was measured, and whether that is enough."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="folder of specbench bench")
    parser.add_argument("--engine", help="graph on a GPU, else each that was timed")
    options = parser.parse_args()
    table = pd.read_csv(options.results / TABLE)
    gpu = table["device"].str.startswith("cuda").any()
    timed = ["graph"] if gpu else [name for name in ON_CPU if name in set(table["engine"])]
    shown = Table("engine", "mark", "asked", "measured", "met")
    for engine in [options.engine] if options.engine else timed:
        results = Results(options.results, engine)
        for mark in gpu_marks(results) if gpu else cpu_marks(results, engine):
            bound = f"{'at most' if mark.at_most else 'at least'} {mark.asked:g}"
            known = mark.measured == mark.measured
            cells = (f"{mark.measured:.2f}", "yes" if mark.met else "no") if known else ("", "")
            shown.add_row(engine, mark.text, bound, *cells)
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
