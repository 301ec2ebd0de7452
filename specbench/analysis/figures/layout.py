"""How the rows of a data frame become panels, rows and data of a figure, and labels of points."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Sequence
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from specbench.analysis.figures.style import GREY, distinct, panels, scaled, values
from specbench.analysis.tables.shown import ENDS
from specbench.errors import UsageError
from specbench.runs.frames import CELL, rows_of
from specbench.runs.labels import method_labels
from specbench.tasks.mini import GENERATORS

log = logging.getLogger(__name__)

SETTING = ("pair", "engine", "batch_size")
_FONT_POINTS = 5.8
_LETTER = 5.2  # mean width of a letter of a title, in points
_REACH = 4.2  # distance of a label from its point, in points
_MARGIN = 0.4  # free space around a label, in points
# Positions of a label around its point, best first, and their distances relative to its reach.
_SIDES = ((1, 1), (-1, -1), (-1, 1), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
_DISTANCES = (1.0, 2.2)
_FARTHER = 3.0  # cost of each further distance
_COVERED = 1e6  # cost of covering a marker or a label; a point on a line costs 1


def task_panels(
    table: pd.DataFrame, height: float, names: Sequence[str] = SETTING, **shared: Any
) -> tuple[Figure, np.ndarray, list[tuple[Axes, pd.DataFrame]]]:
    """Make a titled panel per task and setting; return figure, axes, and panels with their rows."""
    settings, tasks = blocks(table, names), distinct(table, "task")
    figure, grid = panels(len(settings), len(tasks), height, **shared)
    panels_drawn = []
    for (setting, rows), line in zip(settings, grid, strict=True):
        for task, axes in zip(tasks, line, strict=True):
            set_title(axes, title(task, setting, rows))
            panels_drawn.append((axes, rows[rows["task"] == task]))
    return figure, grid, panels_drawn


def blocks(table: pd.DataFrame, names: Sequence[str] = SETTING) -> list[tuple[str, pd.DataFrame]]:
    """Split a table by setting; names list what differs, such as ``mini, compile, batch 8``."""
    differing = [name for name in names if table[name].nunique() > 1]
    formats = {"batch_size": "batch {}"}
    return [
        (", ".join(formats.get(name, "{}").format(rows[name].iloc[0]) for name in differing), rows)
        for _, rows in table.groupby(list(names), sort=False)
    ]


def title(task: str, setting: str, rows: pd.DataFrame, mark: str = "") -> str:
    """Return the title of a task's panel in a setting, whose name may be empty.

    Generated tasks are a positive control of the pair that was trained on them; a reader of the
    figure alone must know. ``mark`` is shown behind the task.
    """
    control = task in GENERATORS and set(rows["pair"]) == {"mini"}
    notes = ["positive control"] * control + [setting] * bool(setting)
    return f"{task}{mark}\n({', '.join(notes)})" if notes else task + mark


def set_title(axes: Axes, text: str) -> None:
    """Set a panel's title; lines that would reach the next panel are broken, at most twice."""
    inches = 1.25 * axes.bbox.width / axes.figure.dpi  # the final layout has wider panels
    letters = int(72 * inches / scaled(_LETTER))
    lines = (textwrap.wrap(t, letters, max_lines=3, placeholder=" …") for t in text.splitlines())
    axes.set_title("\n".join(chain.from_iterable(lines)))


def data(table: pd.DataFrame, *more: str, **drawn: str) -> pd.DataFrame:
    """Return the columns ``CELL``, ``more``, and, by new names, ``drawn`` ones with intervals."""
    columns = {
        name + end: column
        for name, expression in drawn.items()
        for end, column in zip(ENDS, values(table, expression), strict=True)
    }
    return table[[*CELL, *more]].assign(**columns)


def cell_names(cells: pd.DataFrame) -> list[str]:
    """Name each cell: method and parameters, and N and run if there are several."""
    rows, drafted = rows_of(cells), cells.loc[cells["draft_length"] > 0, "draft_length"]
    several_lengths, several_runs = drafted.nunique() > 1, cells["run_id"].nunique() > 1
    names = []
    for row, label in zip(rows, method_labels(rows), strict=True):
        method, _, parameters = label.partition(" ")
        details = [
            parameters,
            f"N = {row['draft_length']}" if several_lengths and row["draft_length"] else "",
            row["run_id"] if several_runs else "",
        ]
        names.append(" ".join(filter(None, [method, ", ".join(filter(None, details))])))
    return names


def timed_together(cells: pd.DataFrame, time: str) -> pd.DataFrame:
    """Return cells without the ``time`` of those added later; log these, and missing intervals."""
    if ((cells["batch_size"] > 1) & cells[f"{time}_low"].isna()).any():
        log.warning("times of texts that were decoded together are drawn without an interval")
    first = cells["session"] == cells.groupby("run_id")["session"].transform("min")
    if not first.all():
        names = ", ".join(dict.fromkeys(method_labels(rows_of(cells[~first]))))
        log.warning("timed in a later session of the run and therefore not drawn: %s", names)
    return cells.assign(**{time: cells[time].where(first)})


def only(table: pd.DataFrame, name: str) -> None:
    """Require a single value of a setting that the figure cannot show."""
    values, noun = sorted(table[name].dropna().unique()), name.replace("_", " ")
    if len(values) > 1:
        listing = ", ".join(value if isinstance(value, str) else f"{value:g}" for value in values)
        filtered = name in ("draft_length", "drafter")
        choice = f"one by --{name.replace('_', '-')}" if filtered else f"runs of one {noun}"
        raise UsageError(f"the runs hold several {noun}s ({listing}): choose {choice}")


class Label(NamedTuple):
    """A label of a point."""

    point: tuple[float, float]  # in data units
    text: str
    colour: str = GREY
    reach: float | None = None  # distance from the point, in points


def place(
    axes: Axes, labels: Sequence[Label], marks: np.ndarray, lines: Sequence[np.ndarray]
) -> None:
    """Place each label beside its point where it covers least; earlier labels have priority.

    A label that is not right beside its point has a line to it. A label is omitted if every
    position covers a marker or another label, or leaves the panel. (adjustText was tried, but it
    keeps every label, even over markers or outside the panel.)

    Args:
        axes: A panel of a figure with a fixed layout.
        labels: Labels, most important first.
        marks: [n, (x, y, radius)] markers in data units, with radii in points.
        lines: Corners [n, (x, y)] of lines in data units.
    """
    pixels = axes.figure.dpi / 72
    centre, radius = axes.transData.transform(marks[:, :2]), marks[:, 2:] * pixels
    along = np.empty((0, 2))  # points along the lines
    for line in lines:
        if len(line) and not np.isnan(line).any():
            corners = axes.transData.transform(line)
            reached = np.hypot(*np.diff(corners, axis=0, prepend=corners[:1]).T).cumsum()
            distances = np.arange(0, reached[-1] + pixels, pixels)
            points = [np.interp(distances, reached, side) for side in corners.T]
            along = np.vstack([along, np.column_stack(points)])
    # Obstacles [n, (left, bottom, right, top)], and the cost of covering each.
    boxes = np.vstack([np.hstack([centre - radius, centre + radius]), np.tile(along, 2)])
    costs = np.repeat([_COVERED, 1.0], [len(marks), len(along)])
    frame = axes.bbox.extents
    margin = scaled(_MARGIN) * pixels * np.array([-1, -1, 1, 1])
    for label in labels:
        text = axes.annotate(
            label.text,
            label.point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=scaled(_FONT_POINTS),
            color=label.colour,
            zorder=6,
            path_effects=[withStroke(linewidth=scaled(1.4), foreground="white")],
        )
        text.set_in_layout(False)
        spots = []
        for step, (across, up) in product(range(len(_DISTANCES)), _SIDES):
            reach = (label.reach or scaled(_REACH)) * (0.6 if across and up else 1.0)
            reach *= _DISTANCES[step]
            spot: dict[str, Any] = {"position": (reach * across, reach * up)}
            spot |= {"ha": ("right", "center", "left")[across + 1]}
            spot |= {"va": ("top", "center", "bottom")[up + 1]}
            text.set(**spot)
            box = np.array(text.get_window_extent().extents) + margin
            outside = (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any()
            apart = (boxes[:, :2] >= box[2:]) | (boxes[:, 2:] <= box[:2])
            cost = costs[~apart.any(axis=1)].sum() + _COVERED * outside + _FARTHER * step
            spots.append((cost, spot, box, step))
        cost, spot, box, step = min(spots, key=lambda candidate: candidate[0])
        if cost < _COVERED:
            text.set(**spot)
            if step:
                arrow = {"arrowstyle": "-", "lw": scaled(0.4), "color": label.colour, "shrinkA": 0}
                around = {"xytext": spot["position"], "textcoords": "offset points"}
                axes.annotate("", label.point, arrowprops=arrow, **around)
            boxes, costs = np.vstack([boxes, box]), np.append(costs, _COVERED)
        else:
            text.remove()
