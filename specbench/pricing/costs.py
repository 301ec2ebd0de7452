"""Seconds of a round by batch size and draft length: as measured, or from a machine's figures.

Both are a table with the columns ``COLUMNS``, one row for each batch size, draft length and
repeat. A row of draft length 0 is a pass without drafts, which emits one token of each text.
Between measured batch sizes, and between measured draft lengths, seconds are interpolated linearly.
A round does not depend on what it accepts, so tokens per round and seconds per round can be
measured apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.analysis.statistics.intervals import Floats
from specbench.analysis.tables.benchmark import repeats_of, with_forced
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.model import ModelDrafter
from specbench.errors import UsageError, listed, require
from specbench.files import stored
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.pricing.bounds import Bound
from specbench.runs.frames import read_samples
from specbench.runs.records import TABLE

COLUMNS = ("batch_size", "draft_length", "repeat", "round_seconds", "draft_seconds")
GIVE = f"give a folder of `specbench bench`, or a CSV file with the columns {', '.join(COLUMNS)}"
COSTS = "costs.csv"
BENCH_REPEATS = "repeats.csv"  # of a folder of ``bench`` of earlier versions
LARGEST = 2**31  # of a batch, a draft length or seconds
STRICT = "sd"
LARGE_VOCABULARY = 100_000
OF_SERVER = (
    "llama.cpp's server adds time of its own to rounds, which is not included: on two CPU cores, "
    "with 151,936 tokens of vocabulary, 45 ms a round and 13 ms a draft were measured"
)


@dataclass(frozen=True)
class Costs:
    """Seconds of a round of a whole batch, for R repeats, B batch sizes and L draft lengths."""

    source: str
    batches: Floats  # [B]
    lengths: Floats  # [L] of which the first is 0, a pass without drafts
    rounds: Floats  # [R, B, L], nan in the repeats that a batch size lacks
    drafts: Floats  # [R, B, L] the part of a round that the draft model takes
    prompts: Floats | None = None  # [B] seconds per token in which prompts of others are read
    bound: Bound | None = None  # of the speed-ups, if a machine's figures gave the seconds
    remark: str = ""  # what they do not include

    def seconds(self, batch: int, length: int, drafter: DrafterKind) -> Floats:
        """Return the seconds of a round in every repeat of that batch size.

        Copied drafts cost nothing here: finding them takes little of a pass of a large model.

        Raises:
            UsageError: The batch size or the draft length is outside of the table.
        """
        measured = {"batch size": (batch, self.batches), "draft length": (length, self.lengths[1:])}
        for noun, (value, grid) in measured.items():
            require(
                grid[0] <= value <= grid[-1] or value == 0,
                f"{noun} {value:g} is outside of the measured {grid[0]:g} to {grid[-1]:g}: measure "
                "it too, or choose another",
            )
        seconds = self.rounds - self.drafts if drafter.copies else self.rounds
        of_batch = _weights(self.batches, batch)
        by_batch = np.tensordot(seconds[:, of_batch > 0], of_batch[of_batch > 0], (1, 0))
        return by_batch[~np.isnan(by_batch).any(axis=1)] @ _weights(self.lengths, length)

    def prompt_seconds(self, batch: int) -> float:
        """Return the seconds per token in which prompts of other texts are read."""
        return 0.0 if self.prompts is None else float(np.interp(batch, self.batches, self.prompts))

    def require_measured(self, batches: Sequence[int], lengths: Sequence[int]) -> None:
        """Check that all batch sizes, and some of the draft lengths, can be interpolated."""
        for batch in batches:
            self.seconds(batch, 0, ModelDrafter())
        first, last = self.lengths[[1, -1]]
        require(
            any(first <= length <= last for length in lengths),
            f"{self.source} has draft lengths {first:g} to {last:g} alone: choose one of them with "
            "--draft-length",
        )

    def table(self) -> pd.DataFrame:
        """Return the costs as rows with ``COLUMNS``."""
        sizes = (range(len(self.rounds)), self.batches.astype(int), self.lengths.astype(int))
        index = pd.MultiIndex.from_product(sizes, names=("repeat", "batch_size", "draft_length"))
        seconds = {"round_seconds": self.rounds.ravel(), "draft_seconds": self.drafts.ravel()}
        return pd.DataFrame(seconds, index=index).dropna().reset_index()[[*COLUMNS]]


def _weights(grid: Floats, value: float) -> Floats:
    """Return the weight of each place of a sorted grid in the linear interpolation at a value."""
    places = np.arange(len(grid))
    return np.clip(1 - abs(places - np.interp(value, grid, places)), 0, 1)


def read_costs(path: Path, engine: str | None = None) -> Costs:
    """Read a table of costs, or the times of an engine in a folder of ``bench``.

    ``repeat`` and ``draft_seconds`` may be missing from the ``COLUMNS`` of a CSV file.
    """
    if path.is_dir() and stored(path / TABLE).exists():
        samples = read_samples(path)
        require("shared_rounds" in samples, f"{path} is a run, but not of `bench`: {GIVE}")
        repeats = repeats_of(with_forced(samples))
        return costs_of(from_bench(repeats, path, engine), str(path))
    is_bench = path.is_dir()
    file = path / BENCH_REPEATS if is_bench else path
    try:
        table = pd.read_csv(file, compression=None)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot read the costs {file} ({reason}): {GIVE}") from error
    return costs_of(from_bench(table, file, engine) if is_bench else table, str(path))


def from_bench(table: pd.DataFrame, file: Path, engine: str | None = None) -> pd.DataFrame:
    """Return the costs in the repeats of a benchmark that timed ``autoregressive`` and ``sd``."""
    needed = {"engine", "method", "rounds", "decode_seconds", "draft_seconds", *COLUMNS[:3]}
    lacking = sorted(needed - {*table})
    require(not lacking, f"{file} has no column {', '.join(lacking)}: give a folder of `bench`")
    is_timed = table["method"].isin([AUTOREGRESSIVE, STRICT])
    table = table[is_timed & (table["engine"] != "transformers")]
    engines = sorted(table["engine"].astype(str).unique())
    chosen = engine or (engines[0] if len(engines) == 1 else "")
    require(
        chosen in engines,
        f"{file} has times of {listed(engines) or 'no engine'}: name one of them with --engine",
    )
    table = table[table["engine"] == chosen]
    sums = table[["decode_seconds", "draft_seconds", "rounds"]]
    sums = sums.apply(pd.to_numeric, errors="coerce")
    return table[[*COLUMNS[:3]]].assign(
        round_seconds=sums["decode_seconds"] / sums["rounds"],
        draft_seconds=sums["draft_seconds"] / sums["rounds"],
    )


def costs_of(table: pd.DataFrame, source: str) -> Costs:
    """Return the costs of a table with ``COLUMNS``."""
    lacking = sorted({"batch_size", "draft_length", "round_seconds"} - {*table})
    require(not lacking, f"{source} has no column {', '.join(lacking)}: add it")
    require(len(table) > 0, f"{source} has no rows: give the seconds of rounds")
    table = pd.DataFrame({name: table.get(name, 0.0) for name in COLUMNS})
    numbers = table.apply(pd.to_numeric, errors="coerce").fillna({"draft_seconds": 0.0})
    good = ((numbers >= 0) & (numbers < LARGEST)).all(axis=1)
    good &= (numbers["batch_size"] >= 1) & (numbers["round_seconds"] > 0)
    good &= (numbers[["batch_size", "draft_length", "repeat"]] % 1 == 0).all(axis=1)
    good &= numbers["draft_seconds"] < numbers["round_seconds"]
    if not good.all():
        row = int((~good).to_numpy().argmax())
        raise UsageError(
            f"{source}: data row {row + 1} is not a cost: give whole batch sizes and draft lengths,"
            " and seconds of a round that are more than those of its drafts"
        )
    numbers["repeat"] = numbers.groupby("batch_size")["repeat"].rank("dense")  # some have fewer
    means = numbers.groupby(["repeat", "batch_size", "draft_length"]).mean()
    repeats, batches, lengths = (level.to_numpy(dtype=float) for level in means.index.levels)
    whole = pd.MultiIndex.from_product([repeats, batches, lengths])
    grid = means.reindex(whole)
    lacks = grid["round_seconds"].isna()
    lacks &= ~lacks.groupby(level=[0, 1]).transform("all")
    if lacks.any():
        _, batch, length = lacks.idxmax()
        raise UsageError(
            f"{source} lacks batch {batch:g} with draft length {length:g}: measure every batch "
            "size with every draft length, and with 0 for a pass without drafts"
        )
    require(
        lengths[0] == 0 and len(lengths) > 1,
        f"{source} needs rows without drafts (draft length 0) and with drafts: measure "
        f"{AUTOREGRESSIVE} and {STRICT}",
    )
    rounds, drafts = (
        grid[name].to_numpy().reshape(len(repeats), len(batches), len(lengths))
        for name in ("round_seconds", "draft_seconds")
    )
    return Costs(source, batches, lengths, rounds, drafts)
