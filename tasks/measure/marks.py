"""Compare a benchmark on a GPU with the targets of the project, and a round with its limit.

    python tasks/measure/marks.py RESULTS [--engine NAME]

RESULTS is a folder of ``specbench bench``; targets that it did not measure are blank. The second
table says in which parts a round of ``sd`` exceeds its limit, the time to read weights, keys and
values at the rate of a copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from specbench.analysis.tables.benchmark import (
    OVER_AUTOREGRESSIVE,
    OVER_ONE,
    ROUND_OVER_SD,
    bench_tables,
    read_benchmark,
)
from specbench.analysis.tables.table import Column, Table
from specbench.cli.output import print_table

AUTOREGRESSIVE, SD, DIVERSED = "autoregressive", "sd", "diversed"


class Target(NamedTuple):
    """A number with its lower or upper target."""

    text: str
    promised: float
    measured: float
    at_most: bool = False

    def row(self, engine: str) -> list[str]:
        """Return the row of the table."""
        bound = f"{'at most' if self.at_most else 'at least'} {self.promised:g}"
        if self.measured != self.measured:
            return [engine, self.text, bound, "", ""]
        gap = self.promised - self.measured
        met = gap >= 0 if self.at_most else gap <= 0
        return [engine, self.text, bound, f"{self.measured:.2f}", "yes" if met else "no"]


class Results:
    """The tables of a benchmark for one engine, at N = 5."""

    def __init__(self, folder: Path, engine: str) -> None:
        wanted = "engine == @engine and draft_length in [0, 5]"
        measured = read_benchmark(folder)
        systems, ratios = bench_tables(measured)
        self.table, self.ratios = systems.query(wanted), ratios.query(wanted)

    def share(self, method: str) -> float:
        """Return the share of the bandwidth limit at batch 1, averaged over forced acceptances."""
        return float(
            self.table.query("method == @method and batch_size == 1")["limit_share"].mean()
        )

    def ratio(self, kind: str, method: str, rate: float | None = None, size: int = 1) -> float:
        """Return a ratio of a method, at one forced acceptance or averaged over all."""
        ratios = self.ratios[self.ratios["ratio"] == kind]
        ratios = ratios.query("method == @method and batch_size == @size")
        if rate is not None:
            ratios = ratios.query("forced_acceptance == @rate")
        return float(ratios["value"].mean())


def targets(results: Results) -> Iterator[Target]:
    """Yield the targets for a GPU: N = 5, batch 1 unless stated otherwise."""
    yield Target("autoregressive: share of the copy bandwidth", 0.8, results.share(AUTOREGRESSIVE))
    yield Target("sd: a round over its bandwidth limit", 1.4, 1 / results.share(SD), True)
    over_sd = results.ratio(ROUND_OVER_SD, DIVERSED)
    yield Target("diversed: a round over that of sd", 1.03, over_sd, True)
    over_alone = results.ratio(OVER_AUTOREGRESSIVE, SD, 0.8)
    yield Target("sd: tokens/s over autoregressive, acceptance 0.8", 1.7, over_alone)
    for method in (AUTOREGRESSIVE, SD):
        batched = results.ratio(OVER_ONE, method, size=32)
        yield Target(f"{method}: tokens/s at batch 32 over batch 1", 12, batched)


def excesses(results: Results, rate: float = 0.8) -> Iterator[list[str]]:
    """Yield a row per part of a round of ``sd`` at batch 1: time, limit and excess, in ms.

    The target's limit is that of a pass of ``autoregressive``: a few more tokens of keys and values
    are next to nothing.
    """
    one = results.table[results.table["batch_size"] == 1]
    alone = one.query("method == @AUTOREGRESSIVE")
    drafted = one.query("method == @SD and forced_acceptance == @rate")
    if alone.empty or drafted.empty:
        return
    pass_limit, row = float(alone.iloc[0]["limit_seconds"]), drafted.iloc[0]
    draft_limit = row["limit_seconds"] - pass_limit
    parts = {
        "drafting": (row["draft_seconds"], draft_limit),
        "the target's pass": (row["verify_seconds"], pass_limit),
        "acceptance": (row["accept_seconds"], 0.0),
        "the rest": (row["other_seconds"], 0.0),
        "round": (row["round_seconds"], row["limit_seconds"]),
    }
    for name, (seconds, limit) in parts.items():
        numbers = [seconds, limit, seconds - limit]
        over = f"{seconds / limit:.2f}" if limit else ""
        yield [name, *(f"{1000 * number:.3f}" for number in numbers), over]


def main() -> None:
    """Print each target, the measurement, and whether it is met; then the parts of a round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="folder of specbench bench")
    parser.add_argument("--engine", default="graph")
    options = parser.parse_args()
    results = Results(options.results, options.engine)
    rows = [target.row(options.engine) for target in targets(results)]
    names = ("engine", "target", "promised", "measured", "met")
    print_table(Table("", [Column(name) for name in names], rows, stub=2))
    parts = ("part of a round of sd", "ms", "limit", "above it", "over limit")
    print_table(Table("", [Column(name) for name in parts], [*excesses(results)], stub=1))


if __name__ == "__main__":
    main()
