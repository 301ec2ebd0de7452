"""What theory predicts against what was measured: on the diagonal both say the same.

Predictions are those of ``specbench theory``. A bar is the 95 % bootstrap interval, over prompts,
of the difference from the prediction: where it crosses the diagonal, the two agree. Accepted
lengths have a second, hollow mark at what the i.i.d. formula predicts. Speed-ups are predicted at
the measured time of a round, so that they agree by construction where tokens per round do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.frames import CELL
from specbench.figures import style
from specbench.figures.cells import blocks, data, title
from specbench.figures.style import GREY, Drawing, scaled
from specbench.results import Results
from specbench.theory.table import ACCEPTANCE, IID, LENGTH, SPEEDUP, theory_table
from specbench.theory.tally import read_tallies

#: The figures drawn, each with its scale and the title of its column.
_COLUMNS = {
    ACCEPTANCE: ("100*", "Accepted / judged (%)"),
    LENGTH: ("1*", "Accepted length"),
    SPEEDUP: ("1*", "Speed-up at the measured\ntime of a round"),
}
_MARGIN = 0.08  # of the range of what is drawn, round it


@style.paged
def draw(results: Results) -> Drawing:
    """Draw measured against predicted figures: one row per task, one column per figure.

    Args:
        results: Runs of one temperature, with ``samples.jsonl``. Without ``autoregressive`` there
            is no speed-up, and its column is left out.

    Raises:
        UsageError: Nothing in them drafts, temperatures are mixed, or their records are not at
            hand.
    """
    folders = [Path(folder) for folder in results.runs["folder"]]
    table = pd.concat([theory_table(read_tallies(folder)) for folder in folders])
    table = _drawn(results.selection.of(table))
    style.only(table, "temperature", "temperature")
    columns = [metric for metric in _COLUMNS if table.loc[_of(table, metric), "x"].notna().any()]
    lines = [
        (title(task, setting), rows[rows["task"] == task])
        for setting, rows in blocks(table)
        for task in style.distinct(rows, "task")
    ]
    figure, grid = style.panels(len(lines), len(columns), height=1.9)
    for (heading, rows), line in zip(lines, grid, strict=True):
        for metric, axes in zip(columns, line, strict=True):
            _panel(axes, rows, metric)
        line[0].set_ylabel(f"{heading}\nMeasured")
    for metric, top, bottom in zip(columns, grid[0], grid[-1], strict=True):
        top.set_title(_COLUMNS[metric][1])
        bottom.set_xlabel("Predicted")
    methods = style.ordered(style.distinct(table, "method"))
    style.legend(figure, [*(style.handle(method) for method in methods), *_iid_handle(columns)])
    kept = table[table["metric"].isin([*columns, *([IID] if LENGTH in columns else [])])]
    return Drawing(figure, data(kept, "metric", "unit", predicted="x", measured="y"))


def _drawn(table: pd.DataFrame) -> pd.DataFrame:
    """Predicted as x, measured as y with the interval of the difference round the prediction."""
    table = table[table["metric"].isin([*_COLUMNS, IID])]
    ends = {f"y{end}": table["predicted"] + table[f"difference{end}"] for end in ("_low", "_high")}
    drawn = table.assign(x=table["predicted"], y=table["measured"], **ends)
    return drawn[[*CELL, "metric", "unit", "x", "y", "y_low", "y_high"]]


def _of(rows: pd.DataFrame, *metrics: str) -> pd.Series:
    return rows["metric"].isin(metrics)


def _panel(axes: Axes, rows: pd.DataFrame, metric: str) -> None:
    scale, _ = _COLUMNS[metric]
    if metric == LENGTH:
        for method, found in rows[_of(rows, IID)].groupby("method", sort=False):
            hollow: dict[str, Any] = {
                "markerfacecolor": "none",
                "markeredgecolor": style.look(str(method)).colour,
                "markeredgewidth": scaled(0.6),
            }
            own = found.drop(columns=["y_low", "y_high"])
            style.method_points(axes, own, str(method), f"{scale}x", f"{scale}y", **hollow)
    for method, found in rows[_of(rows, metric)].groupby("method", sort=False):
        style.method_points(axes, found, str(method), f"{scale}x", f"{scale}y")
    shown = rows[_of(rows, metric, *([IID] if metric == LENGTH else []))]
    ends = ["x", "y", "y_low", "y_high"]
    _frame(axes, float(scale[:-1]) * shown[ends].to_numpy(dtype=float))


def _frame(axes: Axes, values: np.ndarray) -> None:
    """The same range on both axes, with the diagonal."""
    if np.isnan(values).all():
        return
    low, high = np.nanmin(values), np.nanmax(values)
    margin = _MARGIN * (high - low) or 0.5
    low, high = low - margin, high + margin
    axes.plot([low, high], [low, high], color=GREY, linewidth=scaled(0.7), zorder=1)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.locator_params(nbins=4, steps=[1, 2, 5, 10])


def _iid_handle(columns: Sequence[str]) -> list[Line2D]:
    if LENGTH not in columns:
        return []
    hollow: dict[str, Any] = {"marker": "o", "markersize": scaled(5), "markerfacecolor": "none"}
    return [Line2D([], [], linestyle="none", color=GREY, label="i.i.d. formula", **hollow)]
