"""How the training of heads went: reward, acceptance, weight and loss against the step.

Steps are noisy, since each has few texts; a line is the median over a tenth of all steps round
each. The loss leaps where all texts of a step gain alike, as it is in units of the spread of gains;
the axis does not follow it there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.digest import LEARNED
from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.style import Drawing, scaled
from specbench.training.folder import LOG


class _Curve(NamedTuple):
    """A column of ``training.csv`` as it is drawn."""

    column: str
    scale: float
    title: str
    label: str


_CURVES = (
    _Curve("reward", 100.0, "Reward", "Mean score (%)"),
    _Curve("acceptance", 100.0, "Acceptance", "Mean 1 − w TV(p, q) (%)"),
    _Curve("weight", 1.0, "Weight on the target", "Mean w"),
    _Curve("loss", 1.0, "Loss", "Minus the objective\n(spreads of gain)"),
)
_STRICT = "strict_acceptance"  # what there would be at w = 1
_SMOOTHED = 10  # lines are medians over this fraction of the steps
_FAR = 0.05  # of the steps, at either end, may lie far outside
_DASHES = ("-", "--", ":")


@style.paged
def draw(folders: Sequence[Path]) -> Drawing:
    """Draw how heads were trained, a colour for each.

    Args:
        folders: Folders of heads, finished or in training.

    Raises:
        UsageError: One holds no ``training.csv``, or one without a step.
    """
    tables = {name: read_training(folder) for name, folder in _named(folders).items()}
    figure, grid = style.panels(2, 2, height=1.75, sharex=True)
    colours = [style.look(LEARNED).colour] if len(tables) == 1 else style.PAIR_COLOURS
    looks = dict(zip(tables, cycle(product(_DASHES, colours)), strict=False))
    drawn = []
    for name, table in tables.items():
        shown = _shown(table)
        dashes, colour = looks[name]
        for curve, axes in zip(_CURVES, grid.flat, strict=True):
            _draw(axes, shown, curve.column, colour, dashes)
        drawn.append(shown.assign(head=name)[["head", *shown]])
    for curve, axes in zip(_CURVES, grid.flat, strict=True):
        axes.set_title(curve.title)
        axes.set_ylabel(curve.label)
        axes.locator_params(axis="x", integer=True)
    for axes in grid[-1]:
        axes.set_xlabel("Step")
    everything = pd.concat(drawn, ignore_index=True)
    _keep_in_sight(grid[-1, -1], everything["loss"])
    handles = [Line2D([], [], color=c, ls=dashes, label=n) for n, (dashes, c) in looks.items()]
    strict = Line2D([], [], color=style.GREY, ls=(0, (1, 1)), label="acceptance at w = 1")
    style.legend(figure, [*handles, strict])
    return Drawing(figure, everything)


def read_training(folder: Path) -> pd.DataFrame:
    """Read ``training.csv`` of a head's folder: a row per step.

    Raises:
        UsageError: There is none, it is not readable, or it has no step or lacks a column.
    """
    path = folder / LOG
    wanted = ["step", *(curve.column for curve in _CURVES), "disagreement"]
    if not path.is_file():
        raise UsageError(f"{folder} holds no {LOG}: give the folder of a head that was trained")
    try:
        table = pd.read_csv(path, usecols=wanted, dtype="float64")
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}): train the head again") from error
    if table.empty:
        raise UsageError(f"{path} has no step yet: wait for the first one")
    return table


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """Folders by what tells them apart; one alone by its last two names, pair and task mostly."""
    paths = list(dict.fromkeys(folder.resolve() for folder in folders))
    if len(paths) == 1:
        return {"/".join(paths[0].parts[-2:]): paths[0]}
    root = os.path.commonpath(paths)
    return {str(path.relative_to(root)): path for path in paths}


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The step, and what is drawn against it: columns in units, and their medians."""
    scaled_up = {curve.column: curve.scale * table[curve.column] for curve in _CURVES}
    columns = pd.DataFrame(scaled_up | {_STRICT: 100 * (1 - table["disagreement"])})
    window = max(1, len(table) // _SMOOTHED)
    smooth = columns.rolling(window, center=True, min_periods=1).median().add_suffix("_smooth")
    return pd.concat([table["step"], columns, smooth], axis=1)


def _draw(axes: Axes, shown: pd.DataFrame, column: str, colour: str, dashes: str) -> None:
    axes.plot("step", column, data=shown, color=colour, lw=scaled(0.6), alpha=0.3)
    axes.plot("step", f"{column}_smooth", dashes, data=shown, color=colour, lw=scaled(1.2))
    if column == "acceptance":
        dotted: dict[str, Any] = {"color": style.GREY, "lw": scaled(0.9), "ls": (0, (1, 1))}
        axes.plot("step", f"{_STRICT}_smooth", data=shown, **dotted)


def _keep_in_sight(axes: Axes, values: pd.Series) -> None:
    """Let a panel show all values but the few that lie far outside."""
    low, high = values.quantile([_FAR, 1 - _FAR])
    margin = 0.3 * (high - low) or 1.0
    inside = values[values.between(low - margin, high + margin)]
    axes.set_ylim(inside.min() - margin / 4, inside.max() + margin / 4)
