"""What the figures of a report are drawn from: plain values for its script, ready to be shown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path

from specbench.analysis.pareto import STATIC_FAMILY, hull
from specbench.figures import style
from specbench.report.cells import Cell, distinct, scale, setting

DARK = "#14161a"  # the page's background where the reader's is dark; see page.css
_CONTRAST = 4.5  # of a mark against it


class _Axis(NamedTuple):
    """A figure's axis; ``sign`` turns what it shows into a gain, more of which is better."""

    metric: str
    label: str
    scale: float = 1.0
    sign: int = 1


AXES = {
    "acceptance": _Axis("draft_acceptance_rate", "Accepted / drafted (%)", 100.0),
    "seconds": _Axis("seconds_per_sample", "Time per sample (s)", sign=-1),
    "speedup": _Axis("speedup", "Tokens/s over autoregressive's (×)"),
}


def figure_data(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the looks of methods and parts, the axes, and the panels.

    There is a panel for each task, setting and draft length; what drafts nothing belongs to each.
    """
    return {
        "methods": {name: _look(name) for name in style.ordered(distinct(cells, "method"))},
        "parts": {
            name: {"light": colour, "dark": lightened(colour, DARK)}
            for name, colour in style.PARTS.items()
        },
        "axes": {name: axis.label for name, axis in AXES.items()},
        "panels": list(_panels(cells)),
    }


def _panels(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    several = len(distinct(cells, "run_id")) > 1
    for task in distinct(cells, "task"):
        mine = [cell for cell in cells if cell["task"] == task]
        for where in dict.fromkeys(setting(cell, cells) for cell in mine):
            here = [cell for cell in mine if setting(cell, cells) == where]
            for n in sorted({cell["draft_length"] for cell in here} - {0}) or [0]:
                shown = [cell for cell in here if cell["draft_length"] in (0, n)]
                yield {
                    "task": task,
                    "setting": f"{where}, N = {n}" if n else where,
                    "quality": _quality_label(shown[0]),
                    "points": [_point(cell, several) for cell in shown],
                    "fronts": {name: _front(shown, axis) for name, axis in AXES.items()},
                }


def _point(cell: Cell, several: bool) -> dict[str, Any]:
    values = {name: _with_interval(cell, axis.metric, axis.scale) for name, axis in AXES.items()}
    values["quality"] = _with_interval(cell, "quality", scale(cell))
    return {
        "method": cell["method"],
        "label": cell["label"],
        "run": cell["run_id"] if several else None,
        "values": values,
        "tokens": _rounded(cell["acceptance_length"]) or 1.0,
        "round": _round(cell),
    }


def _with_interval(cell: Cell, metric: str, factor: float) -> list[float | None] | None:
    value, *ends = (_rounded(factor * cell[metric + end]) for end in ("", "_low", "_high"))
    return None if value is None else [value, *ends]


def _round(cell: Cell) -> list[float] | None:
    """Milliseconds of a round that its parts take and, last, what is left over."""
    *timed, _ = style.PARTS
    whole, *parts = (1000 * cell[f"{name}_seconds"] for name in ("round", *timed))
    if math.isnan(sum(parts, whole)):
        return None
    return [round(part, 4) for part in (*parts, max(0.0, whole - sum(parts)))]


def _front(cells: Sequence[Cell], axis: _Axis) -> list[int]:
    """The places among the cells of the corners of the static points' hull, by rising gain."""
    family = [i for i, cell in enumerate(cells) if cell["method"] in STATIC_FAMILY]
    gain = np.array([axis.sign * cells[i][axis.metric] for i in family], dtype=np.float64)
    quality = np.array([cells[i]["quality"] for i in family], dtype=np.float64)
    return [family[i] for i in hull(gain, quality)]


def _quality_label(cell: Cell) -> str | None:
    unit = cell["quality_metric"]
    return style.QUALITY_LABELS.get(unit, f"{unit} (×100)") if isinstance(unit, str) else None


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")


def _look(method: str) -> Mapping[str, Any]:
    """A method's look in all figures, for a page: with a colour for dark paper, and its outline."""
    seen = style.look(method)
    return {
        "label": seen.label,
        "light": seen.colour,
        "dark": lightened(seen.colour, DARK),
        "outline": outline(seen.marker),
        "size": seen.size,
        "layer": seen.layer,
    }


def outline(marker: style.Marker) -> str:
    """Return a marker of matplotlib as the path of an SVG, about two units wide round (0, 0)."""
    drawn = MarkerStyle(marker)
    path = drawn.get_path().transformed(drawn.get_transform())
    # As large as matplotlib draws it, with one point of size for half a unit.
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
    parts = []
    for vertices, code in path.iter_segments(simplify=False):
        if code == Path.CLOSEPOLY:
            parts.append("Z")
        else:
            across_and_down = 2 * vertices * np.resize([1, -1], len(vertices))
            parts.append(letters[code] + " ".join(f"{number:.3g}" for number in across_and_down))
    return "".join(parts)


def lightened(colour: str, paper: str) -> str:
    """Return a colour mixed with as much white as it needs to stand out against dark paper."""
    channels = _channels(colour)
    for share in np.linspace(0, 1, 21):
        mixed = channels + share * (1 - channels)
        if _contrast(mixed, _channels(paper)) >= _CONTRAST:
            break
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in mixed)


def _channels(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])


def _contrast(one: np.ndarray, other: np.ndarray) -> float:
    """The ratio of two colours' luminance after WCAG 2."""

    def luminance(channels: np.ndarray) -> float:
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
