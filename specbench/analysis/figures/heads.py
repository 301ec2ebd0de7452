"""Figures of trained heads: training curves, and transfer between tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from specbench.analysis.figures import HEADS, figure, style
from specbench.analysis.figures.style import GREY, Drawing, scaled
from specbench.analysis.results import Results
from specbench.analysis.statistics.estimates import QUALITY
from specbench.analysis.statistics.summary import ACCEPTANCE
from specbench.analysis.tables.run_tables import LEARNED, STRICT, transfer_data
from specbench.analysis.tables.shown import shown
from specbench.errors import UsageError
from specbench.runs.labels import LOG, logged
from specbench.tasks.metrics import shown_metric

#: Columns of ``training.csv`` with the held-out ones beside them: scale, title and label.
_CURVES = {
    ("reward", "held_out_quality"): (100, "Quality", "Mean score (%)"),
    ("acceptance", "held_out_acceptance"): (100, "Acceptance", "Mean 1 − w TV(p, q) (%)"),
    ("weight", "held_out_weight"): (1, "Weight on the target", "Mean w"),
    (None, "held_out_distance"): (100, "Above the static front", "Held-out quality (points)"),
}
_STRICT = "strict_acceptance"  # at w = 1
_SMOOTHED = 10  # lines are running medians over 1/10 of the steps
_DASHES = ("-", "--", ":")

_ROW = 0.27  # height of a head's row in the transfer table, in inches
_PAGE = 7.2  # page width in inches; task names that do not fit are rotated
_LEAST_SPAN = 10.0  # smallest change in quality that gets the strongest colour, in points


@figure(HEADS)
def draw_training(folders: Sequence[Path]) -> Drawing:
    """Draw quality, acceptance, weight and distance against the step, one colour per head.

    Steps are noisy, since each has few texts; the lines are running medians over a tenth of the
    steps. Points are measured on held-out prompts, at some steps. ``folders`` contain heads,
    finished or in training, or folders of heads at any depth.
    """
    # A folder without a log is kept, for its error.
    logs = [head for folder in folders for head in sorted(logged(folder)) or [folder]]
    tables = {name: _shown(read_training(folder)) for name, folder in _named(logs).items()}
    figure, grid = style.panels(2, 2, height=1.75, sharex=True)
    colours = [style.look(LEARNED).colour] if len(tables) == 1 else style.PAIR_COLOURS
    looks = dict(zip(tables, cycle(product(_DASHES, colours)), strict=False))
    floor: dict[str, Any] = {"color": GREY, "lw": scaled(0.9), "ls": (0, (1, 1))}
    held_out: dict[str, Any] = {"marker": "o", "ls": "none", "ms": scaled(3.5)}
    curves = zip(_CURVES.items(), grid.flat, strict=True)
    for ((column, checked), (_, title, label)), axes in curves:
        for name, (dashes, colour) in looks.items():
            options: dict[str, Any] = {"data": tables[name], "color": colour}
            if column is None:
                checks = tables[name].dropna(subset=checked)
                axes.plot("step", checked, dashes, lw=scaled(1.2), data=checks, color=colour)
            else:
                axes.plot("step", column, lw=scaled(0.6), alpha=0.3, **options)
                axes.plot("step", f"{column}_smooth", dashes, lw=scaled(1.2), **options)
            axes.plot("step", checked, **held_out, **options)
            if column == "acceptance":
                axes.plot("step", f"{_STRICT}_smooth", data=tables[name], **floor)
        if column is None:
            axes.axhline(0, color=GREY, lw=scaled(0.8))
        axes.set_title(title)
        axes.set_ylabel(label)
        axes.locator_params(axis="x", integer=True)
    for axes in grid[-1]:
        axes.set_xlabel("Step")
    drawn = [table.assign(head=name)[["head", *table]] for name, table in tables.items()]
    handles = [Line2D([], [], color=c, ls=dashes, label=n) for n, (dashes, c) in looks.items()]
    handles += [
        Line2D([], [], color=GREY, label="held-out prompts", **held_out),
        Line2D([], [], label="acceptance at w = 1", **floor),
    ]
    style.legend(figure, handles)
    return Drawing(figure, pd.concat(drawn, ignore_index=True))


def read_training(folder: Path) -> pd.DataFrame:
    """Read ``training.csv`` of a head's folder: a row per step."""
    path = folder / LOG
    curves = [name for pair in _CURVES for name in pair if name is not None]
    columns = ["step", *curves, "disagreement"]
    if not path.is_file():
        raise UsageError(f"{folder} holds no {LOG}: give the folder of a head that was trained")
    try:
        table = pd.read_csv(path, usecols=columns, dtype="float64")
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}): train the head again") from error
    if table.empty:
        raise UsageError(f"{path} has no step yet: wait for the first one")
    return table


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """Name folders by the parts in which their paths differ; a single one by its last two parts."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    if len(paths) == 1:
        return {"/".join(paths[0].parts[-2:]): paths[0]}
    root = os.path.commonpath(paths)
    return {str(path.relative_to(root)): path for path in paths}


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the step, the scaled columns, and their running medians."""
    steps, checks = pd.DataFrame({_STRICT: 100 * (1 - table["disagreement"])}), table[["step"]]
    for (column, checked), (scale, *_) in _CURVES.items():
        if column is not None:
            steps[column] = scale * table[column]
        checks = checks.assign(**{checked: scale * table[checked]})
    window = max(1, len(table) // _SMOOTHED)
    smooth = steps.rolling(window, center=True, min_periods=1).median().add_suffix("_smooth")
    return pd.concat([checks, steps, smooth], axis=1)


@figure()
def draw_transfer(results: Results) -> Drawing:
    """Draw the transfer table as two heat maps: heads down, tasks across.

    After arXiv 2604.07622. The first row shows the quality without a head. The rows below show the
    change with each head in points, so that tasks with different metrics share one colour scale. A
    frame marks the task that a head was trained for.
    """
    table = transfer_data(results.summary)
    heads, tasks = style.distinct(table, "trained_on"), style.distinct(table, "task")
    acceptance, quality = (
        100 * rows.pivot(index="trained_on", columns="task", values="value").reindex(heads)[tasks]
        for rows in (table[table["metric"] == metric] for metric in (ACCEPTANCE, QUALITY))
    )
    strict = quality.loc[STRICT]
    change = quality - strict

    cell = max(0.5, 0.055 * max(map(len, tasks)))
    rotated = 1.2 + 2 * cell * len(tasks) > _PAGE
    width = max(4.6, 1.2 + 2 * (0.5 if rotated else cell) * len(tasks))
    height = 0.75 + _ROW * len(heads)
    figure, ((left, right),) = style.panels(1, 2, height, width)

    _draw_fields(left, acceptance, acceptance.map("{:.0f}".format), "YlGnBu", Normalize())
    left.set_title(f"{shown(ACCEPTANCE).label},\nframed: the head's task")
    left.set_yticks(range(len(heads)), ["no head (SD)" if h == STRICT else h for h in heads])
    left.set_ylabel("Head trained for")

    span = max(_LEAST_SPAN, change.abs().max(axis=None))
    # Adding zero turns -0.0 into 0.0.
    texts = (change.round(1) + 0.0).map("{:+.1f}".format).astype(object)
    texts.loc[STRICT] = strict.map("{:.1f}".format)
    _draw_fields(right, change, texts, "RdBu", CenteredNorm(halfrange=span))
    right.set_title("Quality without a head,\nand change with one (points)")
    right.set_yticks([])
    units = table[table["metric"] == QUALITY].set_index("task")["unit"]
    below = {
        task: f"\n{shown_metric(unit)[0]}" for task, unit in units.items() if isinstance(unit, str)
    }
    rotation = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if rotated else {}
    left.set_xticks(range(len(tasks)), tasks, **rotation)
    right.set_xticks(range(len(tasks)), [t + below.get(t, "") for t in tasks], **rotation)
    return Drawing(figure, table[table["metric"].isin([ACCEPTANCE, QUALITY])])


def _draw_fields(
    axes: Axes, values: pd.DataFrame, texts: pd.DataFrame, colours: str, norm: Normalize
) -> None:
    """Draw values [heads, tasks] as a heat map with texts."""
    image = axes.imshow(values, cmap=colours, norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        if np.isnan(value):
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
        text = texts.iat[row, column].replace("-", "\N{MINUS SIGN}")
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=scaled(7))
        if values.index[row] == values.columns[column]:
            frame = Rectangle((column - 0.47, row - 0.46), 0.94, 0.92, fill=False, lw=scaled(1.1))
            axes.add_patch(frame)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
