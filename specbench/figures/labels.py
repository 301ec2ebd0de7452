"""Small text labels beside points, placed where they cover nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from numpy.typing import NDArray

from specbench.figures.style import GREY, scaled

Floats = NDArray[np.float64]

_FONT_POINTS = 5.8
_REACH = 4.2  # points from a point to its label
_APART = 0.4  # points left free round each label
_HALO = 1.4  # points of white round letters, for those that cross a line
# The sides of a point to try, best first; a label moves on only from where it covers something.
_SIDES = ((1, 1), (-1, -1), (-1, 1), (1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
_ALIGN_X: dict[int, Literal["right", "center", "left"]] = {-1: "right", 0: "center", 1: "left"}
_ALIGN_Y: dict[int, Literal["top", "center", "bottom"]] = {-1: "top", 0: "center", 1: "bottom"}
_COVERS_TEXT, _COVERS_MARK, _COVERS_LINE = 100.0, 20.0, 1.0


class Label(NamedTuple):
    """A text for the point (x, y), in data units."""

    x: float
    y: float
    text: str
    colour: str = GREY
    reach: float | None = None  # points from the point to the label, else as usual


def place(axes: Axes, labels: Sequence[Label], marks: Floats, lines: Floats) -> None:
    """Write each label on the side of its point where it is in nobody's way.

    A label that would everywhere cover a mark or another label, or leave the panel, is left out.

    Args:
        axes: A panel whose figure is fully laid out.
        labels: What to write, the most important first.
        marks: [n, (x, y, radius)] markers in data units, their radius in points.
        lines: [n, (x, y)] points along lines, in data units; a label may cover them if it must.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    pixels = figure.dpi / 72
    radius = marks[:, 2:] * pixels
    centre = axes.transData.transform(marks[:, :2])
    mark_boxes = np.hstack([centre - radius, centre + radius])
    line_boxes = np.tile(axes.transData.transform(lines), 2)
    text_boxes = np.empty((0, 4))

    def cost(box: Floats) -> float:
        hidden = _overlaps(box, text_boxes) + _leaves(box, np.array(axes.bbox.extents))
        return (
            _COVERS_TEXT * hidden
            + _COVERS_MARK * _overlaps(box, mark_boxes)
            + _COVERS_LINE * _overlaps(box, line_boxes)
        )

    for label in labels:
        text = axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=scaled(_FONT_POINTS),
            color=label.colour,
            zorder=6,
            path_effects=[withStroke(linewidth=scaled(_HALO), foreground="white")],
        )
        text.set_in_layout(False)
        reach = label.reach or scaled(_REACH)
        boxes = []
        for side in _SIDES:
            _move(text, side, reach)
            extents = np.array(text.get_window_extent().extents)
            boxes.append(extents + scaled(_APART) * pixels * np.array([-1, -1, 1, 1]))
        costs = [cost(box) for box in boxes]
        best = int(np.argmin(costs))
        if costs[best] < _COVERS_MARK:
            _move(text, _SIDES[best], reach)
            text_boxes = np.vstack([text_boxes, boxes[best]])
        else:
            text.remove()


def _move(text: Annotation, side: tuple[int, int], reach: float) -> None:
    reach *= 0.6 if all(side) else 1.0
    text.set_position((reach * side[0], reach * side[1]))
    text.set_horizontalalignment(_ALIGN_X[side[0]])
    text.set_verticalalignment(_ALIGN_Y[side[1]])


def _overlaps(box: Floats, boxes: Floats) -> int:
    """How many of ``boxes`` [n, (left, bottom, right, top)] overlap ``box``."""
    apart = (boxes[:, :2] >= box[2:]) | (boxes[:, 2:] <= box[:2])
    return int((~apart.any(axis=1)).sum())


def _leaves(box: Floats, frame: Floats) -> bool:
    return bool((box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any())
