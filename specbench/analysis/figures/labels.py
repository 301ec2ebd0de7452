"""Labels beside the points of a panel, placed where they cover least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from specbench.analysis.figures.style import GREY, scaled

_FONT_POINTS = 5.8
_REACH = 4.2  # distance of a label from its point, in points
_MARGIN = 0.4  # free space around a label, in points
# Positions of a label around its point, best first, and their distances relative to its reach.
_SIDES = ((1, 1), (-1, -1), (-1, 1), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
_DISTANCES = (1.0, 2.2, 3.5)
_FARTHER = 3.0  # cost of each further distance
_COVERED = 1e6  # cost of covering a marker or a label; a point on a line costs 1


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
    along = np.vstack([_along(axes.transData.transform(line), pixels) for line in lines])
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
                line = {"arrowstyle": "-", "lw": scaled(0.4), "color": label.colour}
                around = {"xytext": spot["position"], "textcoords": "offset points"}
                axes.annotate("", label.point, arrowprops=line | {"shrinkA": 0}, **around)
            boxes, costs = np.vstack([boxes, box]), np.append(costs, _COVERED)
        else:
            text.remove()


def _along(corners: np.ndarray, step: float) -> np.ndarray:
    """Return points [n, (x, y)] along a line; none if it is empty or contains NaN."""
    if not len(corners) or np.isnan(corners).any():
        return np.empty((0, 2))
    reached = np.hypot(*np.diff(corners, axis=0, prepend=corners[:1]).T).cumsum()
    distances = np.arange(0, reached[-1] + step, step)
    return np.column_stack([np.interp(distances, reached, side) for side in corners.T])
