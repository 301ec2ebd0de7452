"""How many drafts a round gets accepted: a histogram and its mean for each method.

Every round counts, also the last one of a text, in which no draft after the text's end is judged.
So the mean is that of the tables: all drafts accepted over all rounds. Intervals are 95 % bootstrap
intervals over prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from specbench.analysis.frames import CELL
from specbench.analysis.intervals import bootstrap, estimate, ratio
from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.cells import blocks, names, require_few, title
from specbench.figures.style import Drawing, scaled
from specbench.results import Results

_ROW = 0.7  # inches of a method
_MEAN_AT = 1.18  # of the panel's height, above it
SHARE, MEAN = "share", "mean"


@style.paged
def draw(results: Results) -> Drawing:
    """Draw the accepted drafts per round: one column per task, one row per method and setting.

    Args:
        results: Runs of one temperature, with ``samples.jsonl``.

    Raises:
        UsageError: Nothing in them drafts, temperatures are mixed, there are too many settings, or
            rounds are not at hand.
    """
    rounds = results.rounds
    rounds = rounds[rounds["draft_length"] > 0]
    if rounds.empty:
        raise UsageError("Nothing to draw: no method of these runs drafts; run sd or another one.")
    style.only(rounds, "temperature", "temperature")

    cells = rounds[list(CELL)].drop_duplicates()
    cells = cells.assign(name=names(cells, "\n"))
    methods = cells.drop_duplicates("name").set_index("name")["method"]
    require_few(len(methods))
    counted = pd.concat(_counted(rounds, cells), ignore_index=True)
    order = style.ordered(list(methods.unique()))
    rows = sorted(methods.index, key=lambda name: order.index(methods[name]))
    columns = [
        (title(task, setting), part[part["task"] == task])
        for setting, part in blocks(counted)
        for task in style.distinct(part, "task")
    ]
    figure, grid = style.panels(len(rows), len(columns), height=_ROW, sharex=True, sharey=True)
    for (heading, part), line in zip(columns, grid.T, strict=True):
        for name, axes in zip(rows, line, strict=True):
            _panel(axes, part[part["name"] == name], methods[name])
        line[0].set_title(heading, pad=scaled(14))
    for name, axes in zip(rows, grid[:, 0], strict=True):
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    figure.supxlabel("Drafts accepted per round, with their mean", fontsize=scaled(7.5))
    figure.supylabel("Share of rounds (%)", fontsize=scaled(7.5))
    return Drawing(figure, counted.drop(columns="name"))


def _counted(rounds: pd.DataFrame, cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each cell its histogram and its mean, a row per bar and one for the mean."""
    known = dict(list(rounds.groupby(list(CELL), sort=False, dropna=False)))
    for cell, (_, row) in zip(known, cells.iterrows(), strict=True):
        marks = histogram(known[cell])
        yield marks.assign(**row)[[*CELL, "name", *marks]]


def histogram(rounds: pd.DataFrame) -> pd.DataFrame:
    """How often each number of drafts is accepted, and how many are on average.

    Args:
        rounds: The rounds of one cell.

    Returns:
        ``mark`` (``share``, or ``mean`` in the last row), ``accepted``, blank for the mean, and
        ``value`` with ``value_low`` and ``value_high``: percent of rounds, or drafts per round.
    """
    possible = np.arange(rounds["draft_length"].iloc[0] + 1)
    counts = rounds.groupby(["sample_id", "accepted"]).size().unstack(fill_value=0)
    found = counts.reindex(columns=possible, fill_value=0).to_numpy(dtype=float)
    totals = bootstrap(np.column_stack([found, found @ possible, found.sum(axis=1)]))
    figures = [estimate(ratio(totals[:, [i, -1]]), len(found))[:3] for i in [*possible, -2]]
    table = pd.DataFrame(figures, columns=["value", "value_low", "value_high"])
    table.loc[possible] *= 100
    table.insert(0, "accepted", [*possible.astype(float), np.nan])
    table.insert(0, "mark", [SHARE] * len(possible) + [MEAN])
    return table


def _panel(axes: Axes, marks: pd.DataFrame, method: str) -> None:
    """Draw one histogram, with the mean above it."""
    axes.grid(axis="x", visible=False)
    axes.locator_params(axis="x", nbins=7, integer=True, min_n_ticks=1)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    if marks.empty:
        return
    bars, mean = marks[marks["mark"] == SHARE], marks[marks["mark"] == MEAN]
    axes.bar(bars["accepted"], bars["value"], width=0.8, color=style.look(method).colour, alpha=0.8)
    shares = {"color": "black", "marker": "", "zorder": 4}
    style.points(axes, bars, "accepted", "value", **shares)
    above = axes.get_xaxis_transform()
    style.method_points(
        axes,
        mean.assign(height=_MEAN_AT),
        method,
        "value",
        "height",
        transform=above,
        clip_on=False,
    )
    at, longest = float(mean["value"].iloc[0]), bars["accepted"].max()
    left = at > longest / 2
    axes.annotate(
        f"{at:.2f}",
        (at, _MEAN_AT),
        xycoords=above,
        xytext=(scaled(-7 if left else 7), 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=scaled(6.5),
    )
