"""Tables of a benchmark: times, shares of the bandwidth limit, ratios of systems."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.statistics import estimates
from specbench.analysis.statistics.intervals import Interval, ratio_interval
from specbench.analysis.tables.table import Column, Table, condensed, number, percent, with_interval
from specbench.errors import UsageError
from specbench.methods.method import COMPUTED
from specbench.methods.registry import (
    AUTOREGRESSIVE,
    METHOD_COLUMNS,
    PARAMETER_COLUMNS,
    from_columns,
    to_columns,
)
from specbench.runs.frames import read_samples, rows_of
from specbench.runs.labels import method_label
from specbench.runs.run import read_run

SYSTEM = ("batch_size", "engine", *METHOD_COLUMNS, "draft_length", "forced_acceptance")
SHARED = ("pair", "device", "dtype", "temperature", "prompt_tokens", "new_tokens")
SUMMED = (
    *("texts", "output_tokens", "emitted", "rounds", "text_rounds"),
    *("proposed", "judged", "accepted"),
    *("prefill_seconds", "decode_seconds", "draft_seconds", "verify_seconds", "accept_seconds"),
    *("full_rounds", "full_seconds"),
)
PARTS = ("draft_step", "verify", "accept", "other", "round", "prefill")

OVER_AUTOREGRESSIVE = "tokens/s over autoregressive, same engine"
OVER_ONE = "tokens/s over batch 1"
COUNTED = (
    "tokens/s: of full batches, without prefill, which `run` and `table` include; tokens/round: of "
    "all rounds of all texts."
)
ROUND_OVER_SD = "time of a round over that of sd"

Row = dict[str, Any]


class Measured(NamedTuple):
    """The times of a benchmark."""

    repeats: pd.DataFrame  # one row per system, batch size and repeat
    systems: pd.DataFrame  # one row per system and batch size: warm-up time, bytes per round
    bandwidth: float  # bytes per second, read plus written, of a copy on the device


def read_benchmark(folder: Path) -> Measured:
    """Read the run of a finished benchmark."""
    samples, facts = with_forced(read_samples(folder)), read_run(folder).environment
    bandwidth = facts.copy_bandwidth
    if bandwidth is None or not {"device", "dtype"} <= facts.models.keys():
        raise UsageError(f"{folder} has no whole environment.json: copy it again")
    first = samples.iloc[0]
    systems = pd.DataFrame(facts.warm_ups).assign(
        pair=first["pair"],
        device=facts.models["device"],
        dtype=facts.models["dtype"],
        temperature=first["temperature"],
        prompt_tokens=int(first["prompt_tokens"]),
        new_tokens=int(first["output_tokens"]),
    )
    return Measured(repeats_of(samples), with_forced(systems), bandwidth)


def repeats_of(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the sums over the texts of each system and repeat, from samples ``with_forced``.

    ``rounds`` are those of the batches, and ``text_rounds`` those of all texts. A server keeps all
    rows full, so these would take ``served_seconds`` there: as long as those with full rows.
    """
    counts = samples.reindex(columns=["acceptance_length", "shared_rounds", *SUMMED])
    counts = counts.apply(pd.to_numeric)  # in records, blanks are None
    per_round = counts["acceptance_length"].where(samples["draft_length"] > 0, 1)
    counts = counts.assign(
        texts=1,
        emitted=counts["rounds"] * per_round,
        text_rounds=counts["rounds"],
        rounds=counts["shared_rounds"],
    )
    keys = samples[[*SYSTEM]].assign(repeat=samples["block"].astype(int))
    groups = keys.join(counts[[*SUMMED]]).groupby([*keys], dropna=False, sort=False)
    sums = groups.sum(min_count=1).reset_index()
    full = sums["full_seconds"] / sums["full_rounds"]
    return sums.assign(served_seconds=sums["text_rounds"] * full)


def with_forced(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with `synthetic` named by what it computes, and ``forced_acceptance``."""
    rows = rows_of(table)
    for row in rows:
        values = from_columns(row)
        row["forced_acceptance"] = values.pop("acceptance", None)
        if row["forced_acceptance"] is not None:
            row["method"] = values.pop(COMPUTED, "sd")
            row |= to_columns(values)
    return pd.DataFrame(rows, columns=[*table, "forced_acceptance"])


def bench_tables(measured: Measured) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row per system and batch size, and ratios of systems, paired by repeat."""
    units = measured.repeats.assign(sample_id=measured.repeats["repeat"])  # of time
    groups = units.groupby(list(SYSTEM), dropna=False, sort=False)
    repeats = {_key(group.iloc[0].to_dict()): group for _, group in groups}
    rows = rows_of(measured.systems)
    systems = [_figures(row, repeats[_key(row)], measured.bandwidth) for row in rows]
    ratios = []
    for kind, row, base in _compared(rows):
        metric = estimates.ROUND if kind == ROUND_OVER_SD else estimates.SERVED
        interval = estimates.contrast(repeats[_key(row)], repeats[_key(base)], metric)
        ends = dict(zip(Interval._fields, interval[:4], strict=False))
        over = f"{base['engine']} {method_label(base)}, batch {base['batch_size']}"
        system = {name: row[name] for name in SYSTEM}
        ratios.append({"ratio": kind, **system, "over": over, **ends})
    return pd.DataFrame(systems), pd.DataFrame(ratios)


def _compared(rows: Sequence[Row]) -> Iterator[tuple[str, Row, Row]]:
    """Yield the kind, numerator and denominator of each ratio."""
    by_key = {_key(row): row for row in rows}
    blank: Row = dict.fromkeys(PARAMETER_COLUMNS)
    alone = {"method": AUTOREGRESSIVE, "draft_length": 0, "forced_acceptance": None}
    kinds: dict[str, Row] = {
        OVER_AUTOREGRESSIVE: blank | alone,
        ROUND_OVER_SD: blank | {"method": "sd"},
        OVER_ONE: {"batch_size": 1},
    }
    for kind, changes in kinds.items():
        for row in rows:
            base = by_key.get(_key(row | changes), row)
            if base is not row:
                yield kind, row, base


def _figures(row: Row, repeats: pd.DataFrame, bandwidth: float) -> Row:
    sums: Row = repeats.sum(numeric_only=True, min_count=1, skipna=False).to_dict()
    speed = ratio_interval(repeats["emitted"], repeats["served_seconds"], repeats["repeat"])
    draft = _over(sums["draft_seconds"], sums["rounds"])
    verify = _over(sums["verify_seconds"], sums["rounds"])
    accept = _over(sums["accept_seconds"], sums["rounds"])
    whole = _over(sums["decode_seconds"], sums["rounds"])
    length = _over(sums["emitted"], sums["text_rounds"])
    limit = row["bytes_per_round"] / bandwidth
    return {
        **{name: row[name] for name in (*SHARED, *SYSTEM)},
        "repeats": len(repeats),
        **estimates.wide({"tokens_per_second": speed}),
        # Between the rounds of a batch, the prompts of the next texts are read one by one.
        "tokens_per_second_with_prompts": 1
        / (1 / speed.value + sums["prefill_seconds"] / sums["output_tokens"]),
        # At the end of a repeat, texts that ended leave rows empty.
        "tokens_per_second_of_all_rounds": _over(sums["emitted"], sums["decode_seconds"]),
        "acceptance_length": length,
        "draft_acceptance_rate": _over(sums["accepted"], sums["proposed"]),
        "position_acceptance": _over(sums["accepted"], sums["judged"]),
        "draft_step_seconds": _over(draft, row["draft_length"]),
        "draft_seconds": draft,
        "verify_seconds": verify,
        "accept_seconds": accept,
        "other_seconds": whole - (draft + verify + accept),
        "round_seconds": whole,
        "prefill_seconds": sums["prefill_seconds"] * row["batch_size"] / sums["texts"],
        "warm_up_seconds": row["warm_up_seconds"],
        "bytes_per_round": row["bytes_per_round"],
        "bytes_per_second": _over(row["bytes_per_round"], whole),
        "copy_bandwidth": bandwidth,
        "limit_seconds": limit,
        "limit_share": _over(limit, whole),
    }


def _key(row: Row) -> tuple[Hashable, ...]:
    """Return the values that identify a system; all blanks become None."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in SYSTEM)


def _over(a: float, b: float) -> float:
    return float(a / b) if b else np.nan


def describe(table: pd.DataFrame) -> str:
    """Say in one line what all systems share, and how to read their tables."""
    first = table.iloc[0]
    return (
        f"{first['pair']} in {first['dtype']} on {first['device']}: prompts of "
        f"{first['prompt_tokens']} tokens, {first['new_tokens']} new ones, "
        f"T = {first['temperature']:g}, {first['repeats']} repeats; copies reach "
        f"{number(first['copy_bandwidth'] / 1e9, '3s')} GB/s; times in ms, warm-up in s"
    )


def tables(table: pd.DataFrame, ratios: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per batch size, of the parts of a round in ms, and one of the ratios."""
    named_by = 3 + bool(table["forced_acceptance"].notna().any())
    for size, rows in table.groupby("batch_size", sort=False):
        yield _table(f"batch {size}", named_by, map(_system_cells, rows_of(rows)))
    if len(ratios):
        cells = (
            {
                "ratio of": row["ratio"],
                "system": f"{row['engine']} {method_label(row)}",
                "batch": str(row["batch_size"]),
                "N": str(row["draft_length"] or ""),
                "forced": _rates(row["forced_acceptance"]),
                "ratio [95 %]": with_interval(row["value"], row["low"], row["high"], ".2f"),
            }
            for row in rows_of(ratios)
        )
        yield _table("ratios", 2, cells)


def warnings(table: pd.DataFrame) -> Iterator[str]:
    """Yield a warning for each system that reads faster than the device's memory."""
    for row in rows_of(table[table["limit_share"] > 1]):
        yield (
            f"{row['engine']} {method_label(row)} at batch {row['batch_size']} reads "
            f"{number(row['bytes_per_second'] / 1e9, '3s')} GB/s, but copies reach only "
            f"{number(row['copy_bandwidth'] / 1e9, '3s')}: weights must stay in caches, so ignore "
            "its share of the limit"
        )


def _table(title: str, stub: int, cells: Iterable[Mapping[str, str]]) -> Table:
    rows = list(cells)
    columns = [Column(name) for name in rows[0]]
    texts = [list(row.values()) for row in rows]
    return condensed(Table(title, columns, texts, [COUNTED], stub))


def _system_cells(row: Mapping[Any, Any]) -> dict[str, str]:
    speed = row["tokens_per_second"]
    low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
    return {
        "engine": row["engine"],
        "method": method_label(row),
        "N": str(row["draft_length"] or ""),
        "forced": _rates(row["forced_acceptance"]),
        "accepted\n/ judged": number(row["position_acceptance"], ".3f"),
        "decode\ntokens/s [95 %]": with_interval(speed, low, high, "3s"),
        "tokens/\nround": number(row["acceptance_length"], ".2f"),
        **{part.replace("_", "\n"): number(1e3 * row[f"{part}_seconds"], "3s") for part in PARTS},
        "GB/s": number(row["bytes_per_second"] / 1e9, "3s"),
        "of\nlimit": percent(row["limit_share"]),
        "warm-\nup": number(row["warm_up_seconds"], ".1f"),
    }


def _rates(acceptance: Any) -> str:
    """Return a rate, or rates by position as they are."""
    return acceptance if isinstance(acceptance, str) else number(acceptance, "g")
