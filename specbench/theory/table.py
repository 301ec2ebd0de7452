"""Theory beside measurement: a row for each figure of each cell, predicted and measured.

What is predicted is what the closed forms make of the acceptance probabilities that a run recorded,
before any draft was drawn, and of the times of its rounds; see ``theory.tally`` for
why the two must agree. Their differences are paired: both sides come from the same resampled
prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.frames import CELL
from specbench.analysis.intervals import Floats, Interval, estimate
from specbench.theory.formulas import accepted_length, iid_accepted_length, memory_bound_speedup
from specbench.theory.tally import Tally

ACCEPTANCE, LENGTH, IID, TOKENS, SPEEDUP, MEMORY_BOUND, BIAS, GAP = (
    *("acceptance", "accepted_length", "accepted_length_iid", "tokens_per_round", "speedup"),
    *("memory_bound_speedup", "bias", "front_gap"),
)
#: Metric -> unit. ``accepted_length`` is of blocks that no end cuts short; ``tokens_per_round`` is
#: of all rounds.
UNITS = {
    ACCEPTANCE: "fraction",
    LENGTH: "tokens/round",
    IID: "tokens/round",
    TOKENS: "tokens/round",
    SPEEDUP: "x",
    MEMORY_BOUND: "x",
    BIAS: "fraction",
    GAP: "fraction",
}
SIDES = ("predicted", "measured", "difference")
COLUMNS = (
    *(*CELL, "metric"),
    *(f"{side}{end}" for side in SIDES for end in ("", "_low", "_high")),
    *("n", "unit"),
)
_UNKNOWN: Floats = np.array(np.nan)


class Beside(NamedTuple):
    """A figure of a cell, [1 + RESAMPLES] on each side; NaN where it was not measured."""

    metric: str
    predicted: Floats
    measured: Floats = _UNKNOWN


Row = tuple[Mapping[str, Any], Beside]  # of a cell


def theory_table(tallies: Sequence[Tally], bytes_ratio: float | None = None) -> pd.DataFrame:
    """Return predicted and measured figures of every cell that drafts.

    Args:
        tallies: From ``read_tallies``.
        bytes_ratio: Bytes of the draft's parameters over those of the target's, where known.

    Returns:
        Columns ``COLUMNS``.
    """
    rows = [
        _row(cell, figure, tally.n)
        for tally in tallies
        for cell, figure in _of_cells(tally, bytes_ratio)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of_cells(tally: Tally, bytes_ratio: float | None) -> Iterator[Row]:
    """Figures of each cell at its own draft length."""
    speedups = _speedups(tally)
    for at, cell in enumerate(tally.cells):
        if not (n := cell["draft_length"]):
            continue
        total = {
            name: tally.sum(name)[:, at]
            for name in ("rounds", "judged", "expected", "accepted", "emitted")
        }
        foreseen, pooled = (total[name] / total["judged"] for name in ("expected", "accepted"))
        yield cell, Beside(ACCEPTANCE, foreseen, pooled)
        reached, expected, accepted = _places(tally, at, n)
        length = accepted_length(accepted / reached)
        yield cell, Beside(LENGTH, accepted_length(expected / reached), length)
        if not tally.controlled[at]:
            yield cell, Beside(IID, iid_accepted_length(pooled, n), length)
        # The target's own tokens, which the last round of a text may lack, are taken as they were.
        own = total["emitted"] - total["accepted"]
        tokens = (total["expected"] + own) / total["rounds"]
        yield cell, Beside(TOKENS, tokens, total["emitted"] / total["rounds"])
        predicted = _predicted_speedup(tally, at, tokens)
        yield cell, Beside(SPEEDUP, predicted, speedups[:, at])
        if bytes_ratio is not None and not tally.controlled[at]:
            yield cell, Beside(MEMORY_BOUND, memory_bound_speedup(tokens, n, bytes_ratio))


def _rates(tally: Tally) -> Floats:
    """[1 + RESAMPLES, cells] tokens per second, prefill included."""
    seconds = tally.sum("prefill_seconds") + tally.sum("decode_seconds")
    rates: Floats = tally.sum("output_tokens") / seconds
    return rates


def _speedups(tally: Tally) -> Floats:
    """[1 + RESAMPLES, cells] tokens per second over those of autoregressive decoding."""
    return _rates(tally) / _baseline_rate(tally)[:, None]


def _baseline_rate(tally: Tally) -> Floats:
    """[1 + RESAMPLES] tokens per second of autoregressive decoding, NaN where it was not run."""
    base = tally.baseline
    return np.full(len(tally.totals), np.nan) if base is None else _rates(tally)[:, base]


def _predicted_speedup(tally: Tally, at: int, tokens: Floats) -> Floats:
    """[1 + RESAMPLES] speed-up at so many tokens per round and the cell's own seconds per round."""
    emitted = tally.sum("emitted")[:, at]
    per_round = tally.sum("decode_seconds")[:, at] / tally.sum("rounds")[:, at]
    seconds = tally.sum("prefill_seconds")[:, at] + emitted / tokens * per_round
    gained: Floats = emitted / seconds / _baseline_rate(tally)
    return gained


def _places(tally: Tally, at: int, n: int) -> list[Floats]:
    """[1 + RESAMPLES, N] reached, expected and accepted of a cell, by place.

    A place that no round reached has nothing accepted at it: its chance is 0, not unknown.
    """
    found = [tally.by_place(name)[:, at, :n] for name in ("reached", "expected", "accepted")]
    found[0] = np.maximum(found[0], 1)
    return found


def _row(cell: Mapping[str, Any], figure: Beside, n: int) -> tuple[Any, ...]:
    difference = figure.measured - figure.predicted
    sides = (figure.predicted, figure.measured, difference)
    ends = [end for side in sides for end in _interval(side, n)[:3]]
    return (*(cell[name] for name in CELL), figure.metric, *ends, n, UNITS[figure.metric])


def _interval(values: Floats, n: int) -> Interval:
    if values.ndim == 0:
        return Interval(np.nan, np.nan, np.nan, n)
    return estimate(values, n)
