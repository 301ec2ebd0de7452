"""From the repeats of systems to times, shares of the bandwidth limit, and ratios."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.intervals import (
    Interval,
    paired_ratio_interval,
    ratio_interval,
)
from specbench.bench.measure import Measured
from specbench.bench.plan import PARAMETERS, TRANSFORMERS, name_of
from specbench.methods.registry import AUTOREGRESSIVE

SETTING = ("method", *PARAMETERS, "draft_length", "forced_acceptance")
SYSTEM = ("batch_size", "engine", *SETTING)
SHARED = ("pair", "device", "dtype", "temperature", "prompt_tokens", "new_tokens")
TABLE, REPEATS, RATIOS = "bench.csv", "repeats.csv", "ratios.csv"

Row = dict[str, Any]
Repeats = dict[tuple[Hashable, ...], pd.DataFrame]


class Ratio(NamedTuple):
    """A kind of ratio.

    Attributes:
        name: What it is called in ``ratios.csv``.
        terms: Columns of the repeats: the ratio of their sums is compared.
    """

    name: str
    terms: tuple[str, str]


SPEED = ("output_tokens", "decode_seconds")
OVER_AUTOREGRESSIVE = Ratio("tokens/s over autoregressive, same engine", SPEED)
OVER_TRANSFORMERS = Ratio("tokens/s over Transformers, same method", SPEED)
OVER_ONE = Ratio("tokens/s over batch 1", SPEED)
ROUND_OVER_SD = Ratio("time of a round over that of sd", ("decode_seconds", "rounds"))


def bench_table(measured: Measured) -> pd.DataFrame:
    """Return a row per system and batch size; columns in seconds, bytes and tokens."""
    repeats = _by_system(measured.repeats)
    rows: list[Any] = measured.systems.to_dict("records")
    return pd.DataFrame([_figures(row, repeats[_key(row)], measured.bandwidth) for row in rows])


def ratio_table(measured: Measured) -> pd.DataFrame:
    """Return the ratios between systems with their intervals, paired by repeat."""
    rows: list[Any] = measured.systems.to_dict("records")
    repeats = _by_system(measured.repeats)
    return pd.DataFrame(
        [
            {
                "ratio": kind.name,
                **{name: row[name] for name in SYSTEM},
                "over": _title(base),
                **_paired(kind, repeats[_key(row)], repeats[_key(base)])._asdict(),
            }
            for kind, row, base in _compared(rows)
        ],
    )


def _compared(rows: list[Row]) -> Iterator[tuple[Ratio, Row, Row]]:
    """Yield what is compared with what."""
    known = {_key(row): row for row in rows}

    def find(kind: Ratio, row: Row, **changes: Any) -> Iterator[tuple[Ratio, Row, Row]]:
        base = known.get(_key(row | changes))
        if base is not None and base is not row:
            yield kind, row, base

    blank: Row = dict.fromkeys(PARAMETERS)
    alone = {"method": AUTOREGRESSIVE, "draft_length": 0, "forced_acceptance": None}
    for row in rows:
        yield from find(OVER_AUTOREGRESSIVE, row, **blank | alone)
    for row in rows:
        yield from find(OVER_TRANSFORMERS, row, engine=TRANSFORMERS)
    for row in rows:
        if row["method"] == "diversed":
            yield from find(ROUND_OVER_SD, row, **blank | {"method": "sd"})
    for row in rows:
        yield from find(OVER_ONE, row, batch_size=1)


def _figures(row: Row, repeats: pd.DataFrame, bandwidth: float) -> Row:
    n = row["draft_length"]
    sums: Row = repeats.sum(numeric_only=True, min_count=1, skipna=False).to_dict()
    speed = ratio_interval(repeats[SPEED[0]], repeats[SPEED[1]], repeats["repeat"])
    per_round = {
        name: _over(sums[f"{name}_seconds"], sums["rounds"])
        for name in ("draft", "verify", "accept", "decode")
    }
    whole = per_round["decode"]
    parts = per_round["draft"] + per_round["verify"] + per_round["accept"]
    limit = row["bytes_per_round"] / bandwidth
    return {
        **{name: row[name] for name in (*SHARED, *SYSTEM)},
        "repeats": len(repeats),
        "tokens_per_second": speed.value,
        "tokens_per_second_low": speed.low,
        "tokens_per_second_high": speed.high,
        "acceptance_length": _over(sums["output_tokens"], sums["text_rounds"]),
        "draft_acceptance_rate": _over(sums["accepted"], sums["proposed"]),
        "position_acceptance": _over(sums["accepted"], sums["judged"]),
        "draft_step_seconds": _over(per_round["draft"], n),
        "draft_seconds": per_round["draft"],
        "verify_seconds": per_round["verify"],
        "accept_seconds": per_round["accept"],
        "other_seconds": whole - parts,
        "round_seconds": whole,
        "prefill_seconds": sums["prefill_seconds"] / len(repeats),
        "warm_up_seconds": row["warm_up_seconds"],
        "bytes_per_round": row["bytes_per_round"],
        "bytes_per_second": _over(row["bytes_per_round"], whole),
        "copy_bandwidth": bandwidth,
        "limit_seconds": limit,
        "limit_share": _over(limit, whole),
    }


def _paired(kind: Ratio, mine: pd.DataFrame, theirs: pd.DataFrame) -> Interval:
    return paired_ratio_interval(
        mine[[*kind.terms]], mine["repeat"], theirs[[*kind.terms]], theirs["repeat"]
    )


def _by_system(repeats: pd.DataFrame) -> Repeats:
    groups = repeats.groupby(list(SYSTEM), dropna=False, sort=False)
    return {_key(group.iloc[0].to_dict()): group for _, group in groups}


def _key(row: Row) -> tuple[Hashable, ...]:
    """What tells systems apart, with every blank alike."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in SYSTEM)


def _title(row: Row) -> str:
    return f"{row['engine']} {name_of(row)}, batch {row['batch_size']}"


def _over(a: float, b: float) -> float:
    return float(a / b) if b else np.nan
