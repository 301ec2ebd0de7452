"""The transfer table as two heat maps: draft acceptance, and quality compared with sd.

After the transfer table of arXiv 2604.07622. Heads down, tasks across; a frame marks the tasks that
heads were trained for.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specbench.analysis.transfer import STRICT, transfer_table
from specbench.errors import UsageError
from specbench.figures import style


@style.paged
def draw(summary: pd.DataFrame) -> Figure:
    """Draw the transfer table of one run.

    Args:
        summary: A tidy summary (``analysis.frames.SUMMARY``) of ``specbench transfer``.

    Raises:
        UsageError: The runs compare no heads, or are several.
    """
    table = transfer_table(summary)
    if table["run_id"].nunique() > 1:
        raise UsageError("A transfer table is of one run; draw one at a time.")
    heads, tasks = style.distinct(table, "trained_on"), style.distinct(table, "task")
    acceptance = 100 * _matrix(table, "draft_acceptance_rate").loc[heads, tasks]
    quality = 100 * _matrix(table, "quality").reindex(index=heads, columns=tasks)
    change = quality - quality.loc[STRICT] if STRICT in heads else quality

    figure, grid = style.panels(1, 2, height=0.62 + 0.33 * len(heads))
    _panel(grid[0, 0], acceptance, "Draft acceptance (%)", ".0f", "YlGnBu", Normalize())
    _panel(grid[0, 1], change, "Quality minus that of sd (points)", "+.1f", "RdBu", CenteredNorm())
    grid[0, 0].set_ylabel("Head trained on")
    grid[0, 1].set_yticklabels([])
    return figure


def _matrix(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    rows = table[table["metric"] == metric]
    return rows.pivot(index="trained_on", columns="task", values="value")


def _panel(
    axes: Axes, values: pd.DataFrame, title: str, form: str, colours: str, norm: Normalize
) -> None:
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        if np.isnan(value):
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        ink = "white" if dark else "black"
        axes.text(column, row, f"{value:{form}}", ha="center", va="center", color=ink, fontsize=7)
        if values.index[row] == values.columns[column]:
            frame = Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, linewidth=1.1)
            axes.add_patch(frame)
    axes.set_title(title)
    names = ["no head" if head == STRICT else head for head in values.index]
    axes.set_xticks(range(len(values.columns)), values.columns, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
