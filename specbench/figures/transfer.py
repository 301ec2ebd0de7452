"""The transfer table as two heat maps: draft acceptance, and what a head does to quality.

After the transfer table of arXiv 2604.07622. Heads down, tasks across; a frame marks the task
that a head was trained for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specbench.analysis.transfer import ACCEPTANCE, QUALITY, STRICT, transfer_table
from specbench.figures import style
from specbench.figures.style import Drawing, scaled
from specbench.metrics import METRICS
from specbench.results import Results

_ROW = 0.27  # inches of a row
_PAGE = 7.2  # inches; names that do not fit below one another's cells on it are turned
_LEAST_SPAN = 10.0  # points of quality that get the strongest colour, at least


@style.paged
def draw(results: Results) -> Drawing:
    """Draw the transfer table of one run.

    In the row without a head the quality is the task's own; below it stands how far each head moves
    it, in points, so that tasks with other metrics share one scale of colours.

    Args:
        results: A run of ``specbench transfer``.

    Raises:
        UsageError: The runs compare no heads, or are several.
    """
    table = transfer_table(results.summary)
    heads, tasks = style.distinct(table, "trained_on"), style.distinct(table, "task")
    acceptance, quality = (_matrix(table, name, heads, tasks) for name in (ACCEPTANCE, QUALITY))
    strict = quality.reindex([STRICT]).iloc[0]
    change = quality - strict

    figure, grid = style.panels(1, 2, height=0.75 + _ROW * len(heads))
    turned = _widen(figure, tasks)
    left, right = grid[0]
    _panel(left, acceptance, "YlGnBu", Normalize(acceptance.min(axis=None)), "{:.0f}")
    left.set_title("Accepted / drafted (%)")
    left.set_yticks(range(len(heads)), ["no head (SD)" if h == STRICT else h for h in heads])
    left.set_ylabel("Head trained for")

    span = max(_LEAST_SPAN, change.abs().max(axis=None))
    _panel(right, change, "RdBu", CenteredNorm(halfrange=span), "{:+.1f}", {STRICT: strict})
    right.set_title("Quality without a head,\nand change with one (points)")
    right.set_yticks([])
    units = table[table["metric"] == QUALITY].set_index("task")["unit"]
    below = {task: METRICS[unit].unit for task, unit in units.items() if unit in METRICS}
    _name_tasks(left, tasks, turned)
    _name_tasks(right, [f"{t}\n{below[t]}" if t in below else t for t in tasks], turned)
    return Drawing(figure, table[table["metric"].isin([ACCEPTANCE, QUALITY])])


def _matrix(table: pd.DataFrame, metric: str, heads: list[str], tasks: list[str]) -> pd.DataFrame:
    """A metric in percent [heads, tasks]."""
    rows = table[table["metric"] == metric]
    values = rows.pivot(index="trained_on", columns="task", values="value")
    return 100 * values.reindex(index=heads, columns=tasks)


def _widen(figure: Figure, tasks: list[str]) -> bool:
    """Make room for the names of tasks, and tell whether they must be turned for all that."""
    cell = max(0.5, 0.055 * max(map(len, tasks)))
    turned = 1.2 + 2 * cell * len(tasks) > _PAGE
    width = max(4.6, 1.2 + 2 * (0.5 if turned else cell) * len(tasks))
    figure.set_figwidth(scaled(width))
    return turned


def _panel(
    axes: Axes,
    values: pd.DataFrame,
    colours: str,
    norm: Normalize,
    form: str,
    instead: Mapping[str, pd.Series] = MappingProxyType({}),
) -> None:
    """Draw values [heads, tasks] as coloured fields; some rows are to be written, not shaded."""
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        head, task = values.index[row], values.columns[column]
        # Zero is added so that what rounds to nothing has no minus sign.
        rounded = round(value, 1) + 0.0
        written = f"{instead[head][task]:.1f}" if head in instead else form.format(rounded)
        if "nan" in written:
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
        written = written.replace("-", "\N{MINUS SIGN}")
        axes.text(column, row, written, ha="center", va="center", color=ink, fontsize=scaled(7))
        if head == task:
            frame = Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, lw=scaled(1.1))
            axes.add_patch(frame)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _name_tasks(axes: Axes, names: list[str], turned: bool) -> None:
    turn: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(names)), names, **(turn if turned else {}))
