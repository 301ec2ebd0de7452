"""Tables and figures of a benchmark: times, shares of the bandwidth limit, ratios of systems."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specbench.analysis.figures import style
from specbench.analysis.intervals import Interval, paired_interval, paired_ratio, ratio_interval
from specbench.analysis.output.table import (
    Column,
    Table,
    drop_empty,
    number,
    percent,
    with_interval,
)
from specbench.experiment.bench.measure import Measured
from specbench.experiment.bench.plan import TRANSFORMERS, name_of
from specbench.methods.registry import AUTOREGRESSIVE, METHOD_COLUMNS, PARAMETER_COLUMNS
from specbench.runs.frames import rows_of

SYSTEM = ("batch_size", "engine", *METHOD_COLUMNS, "draft_length", "forced_acceptance")
SHARED = ("pair", "device", "dtype", "temperature", "prompt_tokens", "new_tokens")

PARTS = ("draft_step", "verify", "accept", "other", "round", "prefill")

Row = dict[str, Any]


SPEED = ["output_tokens", "decode_seconds"]
OVER_AUTOREGRESSIVE = "tokens/s over autoregressive, same engine"
OVER_TRANSFORMERS = "tokens/s over Transformers, same method"
OVER_ONE = "tokens/s over batch 1"
ROUND_OVER_SD = "time of a round over that of sd"
WHOLE = "round"  # for systems whose rounds are not divided into parts
_COLOURS = {**style.PARTS, WHOLE: "#DDDDDD"}
_NAMES = {**{part: part.capitalize() for part in style.PARTS}, WHOLE: "Undivided"}
_BAR_INCHES, _NUMBER_POINTS = 0.17, 5.8
_LIMIT: dict[str, Any] = {"color": "black", "ls": (0, (1.5, 1))}


def bench_table(measured: Measured) -> pd.DataFrame:
    """Return one row per system and batch size; columns in seconds, bytes and tokens."""
    repeats = _by_system(measured)
    rows = rows_of(measured.systems)
    return pd.DataFrame([_figures(row, repeats[_key(row)], measured.bandwidth) for row in rows])


def ratio_table(measured: Measured) -> pd.DataFrame:
    """Return the ratios between systems with intervals, paired by repeat."""
    rows = rows_of(measured.systems)
    repeats = _by_system(measured)
    ratios = []
    for kind, row, base in _compared(rows):
        upper, lower = repeats[_key(row)], repeats[_key(base)]
        terms = ["decode_seconds", "rounds"] if kind == ROUND_OVER_SD else SPEED
        sides = upper[terms], upper["repeat"], lower[terms], lower["repeat"]
        interval = paired_interval(*sides, paired_ratio, log=True)
        ends = dict(zip(Interval._fields, interval[:4], strict=False))
        over = f"{base['engine']} {name_of(base)}, batch {base['batch_size']}"
        system = {name: row[name] for name in SYSTEM}
        ratios.append({"ratio": kind, **system, "over": over, **ends})
    return pd.DataFrame(ratios)


def _compared(rows: Sequence[Row]) -> Iterator[tuple[str, Row, Row]]:
    """Yield the kind, numerator and denominator of each ratio."""
    by_key = {_key(row): row for row in rows}
    blank: Row = dict.fromkeys(PARAMETER_COLUMNS)
    alone = {"method": AUTOREGRESSIVE, "draft_length": 0, "forced_acceptance": None}
    kinds: dict[str, Row] = {
        OVER_AUTOREGRESSIVE: blank | alone,
        OVER_TRANSFORMERS: {"engine": TRANSFORMERS},
        ROUND_OVER_SD: blank | {"method": "sd"},
        OVER_ONE: {"batch_size": 1},
    }
    for kind, changes in kinds.items():
        for row in rows:
            base = by_key.get(_key(row | changes), row)
            if base is not row and (kind != ROUND_OVER_SD or row["method"] == "diversed"):
                yield kind, row, base


def _figures(row: Row, repeats: pd.DataFrame, bandwidth: float) -> Row:
    sums: Row = repeats.sum(numeric_only=True, min_count=1, skipna=False).to_dict()
    speed = ratio_interval(repeats[SPEED[0]], repeats[SPEED[1]], repeats["repeat"])
    draft = _over(sums["draft_seconds"], sums["rounds"])
    verify = _over(sums["verify_seconds"], sums["rounds"])
    accept = _over(sums["accept_seconds"], sums["rounds"])
    whole = _over(sums["decode_seconds"], sums["rounds"])
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
        "draft_step_seconds": _over(draft, row["draft_length"]),
        "draft_seconds": draft,
        "verify_seconds": verify,
        "accept_seconds": accept,
        "other_seconds": whole - (draft + verify + accept),
        "round_seconds": whole,
        "prefill_seconds": sums["prefill_seconds"] / len(repeats),
        "warm_up_seconds": row["warm_up_seconds"],
        "bytes_per_round": row["bytes_per_round"],
        "bytes_per_second": _over(row["bytes_per_round"], whole),
        "copy_bandwidth": bandwidth,
        "limit_seconds": limit,
        "limit_share": _over(limit, whole),
    }


def _by_system(measured: Measured) -> dict[tuple[Hashable, ...], pd.DataFrame]:
    groups = measured.repeats.groupby(list(SYSTEM), dropna=False, sort=False)
    return {_key(group.iloc[0].to_dict()): group for _, group in groups}


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


def shown(table: pd.DataFrame, ratios: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per batch size, of the parts of a round in ms, and one of the ratios."""
    named_by = 3 + bool(table["forced_acceptance"].notna().any())
    for size, rows in table.groupby("batch_size", sort=False):
        yield _table(f"batch {size}", named_by, map(_system_cells, rows_of(rows)))
    if len(ratios):
        yield _table("ratios", 2, map(_ratio_cells, rows_of(ratios)))


def warnings(table: pd.DataFrame) -> Iterator[str]:
    """Yield a warning for each system that reads faster than the device's memory."""
    for row in rows_of(table[table["limit_share"] > 1]):
        yield (
            f"{row['engine']} {name_of(row)} at batch {row['batch_size']} reads "
            f"{number(row['bytes_per_second'] / 1e9, '3s')} GB/s, but copies reach only "
            f"{number(row['copy_bandwidth'] / 1e9, '3s')}: weights must stay in caches, so ignore "
            "its share of the limit"
        )


def _table(title: str, stub: int, cells: Iterable[Mapping[str, str]]) -> Table:
    rows = list(cells)
    columns = [Column(name) for name in rows[0]]
    return drop_empty(Table(title, columns, [list(row.values()) for row in rows], stub=stub))


def _system_cells(row: Mapping[Any, Any]) -> dict[str, str]:
    speed = row["tokens_per_second"]
    low, high = row["tokens_per_second_low"], row["tokens_per_second_high"]
    return {
        "engine": row["engine"],
        "method": name_of(row),
        "N": str(row["draft_length"] or ""),
        "forced": number(row["forced_acceptance"], "g"),
        "accepted\n/ judged": number(row["position_acceptance"], ".3f"),
        "decode\ntokens/s [95 %]": with_interval(speed, low, high, "3s"),
        "tokens/\nround": number(row["acceptance_length"], ".2f"),
        **{part.replace("_", "\n"): number(1e3 * row[f"{part}_seconds"], "3s") for part in PARTS},
        "GB/s": number(row["bytes_per_second"] / 1e9, "3s"),
        "of\nlimit": percent(row["limit_share"]),
        "warm-\nup": number(row["warm_up_seconds"], ".1f"),
    }


def _ratio_cells(row: Mapping[Any, Any]) -> dict[str, str]:
    return {
        "ratio of": row["ratio"],
        "system": f"{row['engine']} {name_of(row)}",
        "batch": str(row["batch_size"]),
        "N": str(row["draft_length"] or ""),
        "forced": number(row["forced_acceptance"], "g"),
        "[95 %]": with_interval(row["value"], row["low"], row["high"], ".2f"),
    }


def save_figures(table: pd.DataFrame, folder: Path) -> None:
    """Write the figures of a table from ``bench_table``.

    Raises:
        SpecbenchError: They cannot be written.
    """
    style.save(draw_rounds(table), folder, "rounds")
    if table["forced_acceptance"].nunique() > 1:
        style.save(draw_curve(table), folder, "time-per-token")


@style.paged
def draw_rounds(table: pd.DataFrame) -> style.Drawing:
    """Draw the time of a round as stacked bars: one bar per system, one panel per batch size.

    Systems that differ only in forced acceptance share a bar, as acceptance does not change the
    time of a round.
    """
    bars = _bars(table)
    sizes = style.distinct(bars, "batch_size")
    most = bars["batch_size"].value_counts().max()
    width = max(5.2, 4.2 * len(sizes))
    figure, grid = style.panels(1, len(sizes), height=_BAR_INCHES * most + 0.6, width=width)
    for size, axes in zip(sizes, grid[0], strict=True):
        _draw_bars(axes, bars[bars["batch_size"] == size])
        axes.set_title(f"Batch {size}")
        axes.set_xlabel("Time per round (ms)")
    parts = [part for part in _COLOURS if bars[part].gt(0).any()]
    patches = [Patch(label=_NAMES[part], color=_COLOURS[part]) for part in parts]
    limit = Line2D([], [], label="Bandwidth limit", lw=style.scaled(0.9), **_LIMIT)
    style.legend(figure, [*patches, limit])
    return style.Drawing(figure, bars)


@style.paged
def draw_curve(table: pd.DataFrame) -> style.Drawing:
    """Draw time per token vs. forced acceptance, one panel per engine, batch size and N."""
    columns = ["batch_size", "engine", *METHOD_COLUMNS, "draft_length", "forced_acceptance"]
    table = table[columns].assign(  # the reciprocal swaps the ends of the interval
        time=1e3 / table["tokens_per_second"],
        time_low=1e3 / table["tokens_per_second_high"],
        time_high=1e3 / table["tokens_per_second_low"],
    )
    engines = style.distinct(table, "engine")
    drafted = table[table["forced_acceptance"].notna()]
    rows = list(drafted.groupby(["batch_size", "draft_length"], sort=False).groups)
    figure, grid = style.panels(len(rows), len(engines), height=2.0, sharex=True, sharey="row")
    for (size, length), line in zip(rows, grid, strict=True):
        for engine, axes in zip(engines, line, strict=True):
            rows_of_engine = table[(table["batch_size"] == size) & (table["engine"] == engine)]
            _draw_times(axes, rows_of_engine[rows_of_engine["draft_length"].isin([0, length])])
            axes.set_title(f"{engine}, batch {size}, N = {length}")
        line[0].set_ylabel("Time per token (ms)")
        line[0].set_ylim(bottom=0)  # after all panels that share this axis are drawn
    for axes in grid[-1]:
        axes.set_xlabel("Forced acceptance per position")
    methods = style.ordered(style.distinct(table, "method"))
    bare = {AUTOREGRESSIVE: {"marker": ""}}
    style.legend(
        figure, [style.handle(name, linestyle="-", **bare.get(name, {})) for name in methods]
    )
    return style.Drawing(figure, table)


def _bars(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bar in milliseconds, averaged over forced acceptances."""
    labels = [
        f"{row['engine']} {name_of(row)}" + (f", N = {n}" if (n := row["draft_length"]) else "")
        for row in rows_of(table)
    ]
    divided = table["verify_seconds"].notna()
    parts = {
        part: 1e3 * table[f"{part}_seconds"].where(~divided if part == WHOLE else divided, 0)
        for part in _COLOURS
    }
    bars = table[["batch_size"]].assign(system=labels, **parts, limit=1e3 * table["limit_seconds"])
    return bars.groupby(["batch_size", "system"], sort=False).mean().reset_index()


def _draw_bars(axes: Axes, bars: pd.DataFrame) -> None:
    places, ends, limits = np.arange(len(bars)), np.zeros(len(bars)), bars["limit"].to_numpy()
    for part, colour in _COLOURS.items():
        width = bars[part].clip(lower=0).to_numpy()
        drawn = axes.barh(places, width, left=ends, color=colour, height=0.72)
        ends += width
    axes.bar_label(
        drawn,
        [f"{end:.3g}" for end in ends],
        padding=style.scaled(2),
        fontsize=style.scaled(_NUMBER_POINTS),
        color=style.GREY,
    )
    axes.vlines(limits, places - 0.45, places + 0.45, lw=style.scaled(0.9), **_LIMIT)
    axes.set_yticks(places, list(bars["system"]))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.1 * max(ends.max(), limits.max()))


def _draw_times(axes: Axes, times: pd.DataFrame) -> None:
    for time in times.loc[times["method"] == AUTOREGRESSIVE, "time"]:
        axes.axhline(time, color=style.look(AUTOREGRESSIVE).colour, lw=style.scaled(1))
    drafted = times[times["forced_acceptance"].notna()].sort_values("forced_acceptance")
    line = {"linestyle": "-", "linewidth": style.scaled(0.9)}
    for (method, *_), rows in drafted.groupby([*METHOD_COLUMNS], dropna=False, sort=False):
        style.method_points(axes, rows, str(method), "forced_acceptance", "time", **line)
