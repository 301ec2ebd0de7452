"""The crossover map: where speculation pays, by batch size, draft length and acceptance."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.lines import Line2D

from specbench.analysis.figures import style
from specbench.analysis.figures.style import GREY, Drawing, scaled
from specbench.analysis.intervals import Floats
from specbench.decoding.drafters.kind import DrafterKind
from specbench.pricing.decide import Decision, PricedSetting

_COLOURS = ("#0077BB", "#EE7733", "#228833", "#AA3377")  # of drafters
_MARKERS = ("^", "s", "D", "o")
_MAP = "PuOr_r"  # diverges at 1 and keeps its order in greyscale on either side
_APART = 0.1  # distance of the marks of drafters, so that none hides another
_DOT: dict[str, Any] = {"marker": "o", "ls": "none", "color": "black"}
_ACCEPTANCES = np.linspace(0.02, 0.98, 97)


@style.paged
def draw_crossover(decision: Decision) -> Drawing:
    """Draw three panels: speed-up by batch, by batch and N, and the break-even acceptance."""
    figure, grid = style.panels(1, 3, height=2.3)
    by_batch, by_length, break_even = grid[0]
    _draw_speedups(by_batch, decision)
    best = decision.fastest(decision.batches[0]).drafter
    _draw_lengths(by_length, decision, best)
    _draw_break_even(break_even, decision)
    for axes in grid[0]:
        places = range(len(decision.batches))
        axes.set_xticks(places, [str(batch) for batch in decision.batches])
        if len(places) == 1:
            axes.set_xlim(-0.5, 0.5)
        axes.set_xlabel("Batch size")
    handles: list[Any] = [
        Line2D([], [], label=str(drafter), **_look(decision, drafter))
        for drafter in decision.drafters
    ]
    handles += [
        Line2D([], [], label="fastest N", markersize=scaled(3), **_DOT),
        Line2D([], [], label="speed-up of 1", color="black", lw=scaled(0.9)),
    ]
    style.legend(figure, handles)
    return Drawing(figure, decision.table())


def _look(decision: Decision, drafter: DrafterKind) -> dict[str, Any]:
    number = decision.drafters.index(drafter) % len(_COLOURS)
    return {"color": _COLOURS[number], "marker": _MARKERS[number], "markersize": scaled(3.5)}


def _beside(decision: Decision, drafter: DrafterKind) -> Floats:
    """Return the places of a drafter's marks on the axis of batch sizes."""
    middle = (len(decision.drafters) - 1) / 2
    number = decision.drafters.index(drafter) - middle
    return np.arange(len(decision.batches), dtype=np.float64) + _APART * number


def _draw_speedups(axes: Axes, decision: Decision) -> None:
    axes.axhline(1, color=GREY, lw=scaled(0.7))
    for drafter in decision.drafters:
        best = [decision.fastest(batch, drafter) for batch in decision.batches]
        look = _look(decision, drafter)
        value, low, high = np.array([setting.speedup[:3] for setting in best]).T
        beside = _beside(decision, drafter)
        axes.fill_between(beside, low, high, color=look["color"], alpha=0.18, lw=0)
        if len(beside) == 1:  # a band has no width there
            axes.vlines(beside, low, high, color=look["color"], lw=scaled(1))
        axes.plot(beside, value, lw=scaled(1), **look)
    axes.set_ylabel("Speed-up over no drafts")
    axes.set_title("Fastest N, " + ("computed" if decision.costs.machine else "95 % band"))


def _draw_lengths(axes: Axes, decision: Decision, drafter: DrafterKind) -> None:
    rows = [setting for setting in decision.settings if setting.drafter == drafter]
    lengths = sorted({setting.length for setting in rows})
    value = {(setting.length, setting.batch): setting.speedup.value for setting in rows}
    grid = np.array([[value[n, batch] for batch in decision.batches] for n in lengths])
    # The colours diverge at 1, also where every setting is on one side of it.
    norm = TwoSlopeNorm(1, min(grid.min(), 0.99), max(grid.max(), 1.01))
    edges = [np.arange(size + 1) - 0.5 for size in grid.shape]  # each N has a row
    drawn = axes.pcolormesh(edges[1], edges[0], grid, cmap=_MAP, norm=norm, rasterized=True)
    if grid.min() < 1 < grid.max() and min(grid.shape) > 1:
        lines = axes.contour(grid, [1], colors="black")
        lines.set_linewidth(scaled(0.9))
    fastest = [decision.fastest(batch, drafter) for batch in decision.batches]
    axes.plot([lengths.index(setting.length) for setting in fastest], **_DOT, markersize=scaled(3))
    axes.set_yticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_ylabel("N")
    axes.grid(visible=False)
    axes.set_title(f"Drafter: {drafter}")
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02)
    bar.ax.tick_params(labelsize=scaled(6))
    bar.set_label("Speed-up", fontsize=scaled(6.5))
    bar.outline.set_visible(False)


def _draw_break_even(axes: Axes, decision: Decision) -> None:
    """Draw the acceptance per position from which drafting pays, if positions were alike."""
    for drafter in decision.drafters:
        look = _look(decision, drafter)
        edges = [break_even(decision, batch, drafter) for batch in decision.batches]
        axes.plot(edges, color=look["color"], lw=scaled(0.9))
        if len(edges) == 1:  # a line has no length there
            axes.hlines(edges, -0.4, 0.4, color=look["color"], lw=scaled(0.9))
        best = [decision.fastest(batch, drafter) for batch in decision.batches]
        axes.plot(
            _beside(decision, drafter), [equivalent(setting) for setting in best], ls="none", **look
        )
    axes.set_ylim(0, 1)
    axes.set_ylabel("Acceptance per position")
    axes.set_title("Needed (line), had (marker)")


def tokens_of(acceptance: Floats, length: int) -> Floats:
    """Return tokens per round if every position accepts alike and independently.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1.
    """
    powers = np.arange(length + 1)
    total: Floats = (np.asarray(acceptance)[..., None] ** powers).sum(-1)
    return total


def equivalent(setting: PricedSetting) -> float:
    """Return the constant acceptance that gives a setting's tokens per round."""
    means = tokens_of(_ACCEPTANCES, setting.length)
    return float(np.interp(setting.tokens_per_round.value, means, _ACCEPTANCES))


def break_even(decision: Decision, batch: int, drafter: DrafterKind) -> float:
    """Return the lowest constant acceptance at which some N is faster than no drafts; at most 1."""
    costs, lengths = decision.costs, sorted({setting.length for setting in decision.settings})
    plain = costs.seconds(batch, 0, drafter).mean()
    ratios = [costs.seconds(batch, n, drafter).mean() / plain for n in lengths]
    pays = np.array([tokens_of(_ACCEPTANCES, n) > r for n, r in zip(lengths, ratios, strict=True)])
    faster = pays.any(axis=0)
    return float(_ACCEPTANCES[faster.argmax()]) if faster.any() else 1.0
