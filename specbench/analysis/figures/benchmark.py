"""Figures of a benchmark: the parts of a round, and time per token by forced acceptance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specbench.analysis.benchmark import SYSTEM, name_of
from specbench.analysis.figures import style
from specbench.methods.registry import AUTOREGRESSIVE, METHOD_COLUMNS
from specbench.runs.frames import rows_of

WHOLE = "round"  # for systems whose rounds are not divided into parts
_COLOURS = {**style.PARTS, WHOLE: "#DDDDDD"}
_NAMES = {**{part: part.capitalize() for part in style.PARTS}, WHOLE: "Undivided"}
_BAR_INCHES, _NUMBER_POINTS = 0.17, 5.8
_LIMIT: dict[str, Any] = {"color": "black", "ls": (0, (1.5, 1))}


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
    forced = pd.to_numeric(table["forced_acceptance"], errors="coerce")
    table = table[[*SYSTEM]].assign(  # the reciprocal swaps the ends of the interval
        forced_acceptance=forced,
        time=1e3 / table["tokens_per_second"],
        time_low=1e3 / table["tokens_per_second_high"],
        time_high=1e3 / table["tokens_per_second_low"],
    )[forced.notna() | table["forced_acceptance"].isna()]
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
