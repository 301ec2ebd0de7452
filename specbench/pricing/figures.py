"""The crossover figure: where speculation pays, by batch size."""

from __future__ import annotations

import numpy as np

from specbench.analysis.figures import style
from specbench.analysis.figures.style import GREY, Drawing, scaled
from specbench.pricing.decide import Decision

_LOOKS = (("#0077BB", "^"), ("#EE7733", "s"), ("#228833", "D"), ("#AA3377", "o"))  # of drafters
_APART = 0.1  # distance of the marks of drafters, so that none hides another


@style.paged
def draw_crossover(decision: Decision) -> Drawing:
    """Draw the speed-up of each drafter at its fastest N by batch size, with its interval."""
    figure, ((axes,),) = style.panels(1, 1, height=2.3)
    axes.axhline(1, color=GREY, lw=scaled(0.7))
    batches = np.arange(len(decision.batches))
    handles = []
    for number, drafter in enumerate(decision.drafters):
        fastest = [decision.fastest(batch, drafter) for batch in decision.batches]
        value, low, high = np.array([setting.speedup[:3] for setting in fastest]).T
        colour, marker = _LOOKS[number % len(_LOOKS)]
        x = batches + _APART * (number - (len(decision.drafters) - 1) / 2)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
        if len(x) == 1:  # a band has no width there
            axes.vlines(x, low, high, color=colour, lw=scaled(1))
        line = {"color": colour, "marker": marker, "markersize": scaled(3.5), "lw": scaled(1)}
        handles += axes.plot(x, value, label=str(drafter), **line)
    axes.set_xticks(batches, [str(batch) for batch in decision.batches])
    if len(batches) == 1:
        axes.set_xlim(-0.5, 0.5)
    axes.set_xlabel("Batch size")
    axes.set_ylabel("Speed-up over no drafts")
    axes.set_title("Fastest N, " + ("nine of ten" if decision.is_computed else "95 % band"))
    style.legend(figure, handles)
    return Drawing(figure, decision.table())
