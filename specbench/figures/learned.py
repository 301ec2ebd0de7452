"""The weights a head gives, by kind of token and by token: what it has learned.

Left, per kind, the spread of w, its mean, and its mean weighed by how much the models disagree.
Right, the tokens with the highest and the lowest mean weight.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specbench.errors import UsageError
from specbench.figures import style
from specbench.heads.learned import (
    ALL,
    CAPITALISED,
    END,
    KIND,
    LOWER_CASE,
    NUMBER,
    OPERATOR,
    PIECE,
    PUNCTUATION,
    QUANTILES,
    SPACE,
    TOKEN,
)

SHOWN = 12  # tokens at either end
FEWEST = 10  # occurrences of a token that is shown
GAP = 0.8  # rows between the two ends

#: Colour and marker of a kind: Paul Tol's muted scheme.
LOOKS = {
    NUMBER: ("#332288", "s"),
    OPERATOR: ("#CC6677", "P"),
    PUNCTUATION: ("#882255", "X"),
    CAPITALISED: ("#117733", "^"),
    LOWER_CASE: ("#44AA99", "o"),
    PIECE: ("#999933", "v"),
    SPACE: ("#88CCEE", "d"),
    END: ("#AA4499", "p"),
}
_WHISKERS = dict(zip(QUANTILES, ("whislo", "q1", "med", "q3", "whishi"), strict=True))


@style.paged
def draw(table: pd.DataFrame) -> Figure:
    """Draw what a head has learned; both panels share the axis of w.

    Args:
        table: As ``heads.learned.tabulate`` returns.

    Raises:
        UsageError: There is nothing in it.
    """
    if table.empty:
        raise UsageError("Nothing to draw: no token was sampled; sample more texts with --limit.")
    kinds, tokens = table[table["level"] == KIND], table[table["level"] == TOKEN]
    mean = float(table.loc[table["level"] == ALL, "mean_weight"].iloc[0])

    figure, ((left, right),) = style.panels(1, 2, height=3.6, sharex=True)
    for axes in (left, right):
        axes.axvline(mean, color=style.GREY, linewidth=0.8, linestyle="--", zorder=1)
        axes.set_xlabel("Weight on the target w")
        axes.grid(axis="y", visible=False)
    left.set_title("By kind of token")
    right.set_title("Highest and lowest mean w")
    _draw_kinds(left, kinds)
    _draw_tokens(right, tokens)
    style.legend(figure, _handles())
    figure.suptitle(_title(table.iloc[0]), fontsize=8.5, parse_math=False)
    return figure


def _title(row: pd.Series) -> str:
    trained_on = row["trained_on"]
    elsewhere = "" if trained_on in ("", row["task"]) else f" trained on {trained_on}"
    return f"{row['pair']}, {row['task']}: {row['head_kind']} head{elsewhere}"


def _draw_kinds(axes: Axes, kinds: pd.DataFrame) -> None:
    """A box per kind from its quantiles, with both means, the highest on top."""
    for place, (_, row) in enumerate(kinds.iterrows()):
        colour, marker = LOOKS[row["kind"]]
        stats = {name: row[quantile] for quantile, name in _WHISKERS.items()}
        line = {"color": colour, "linewidth": 0.8}
        axes.bxp(
            [stats],
            positions=[place],
            widths=0.55,
            orientation="horizontal",
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "alpha": 0.25, "edgecolor": colour, "linewidth": 0.8},
            medianprops=line | {"linewidth": 1.4},
            whiskerprops=line,
            capprops=line,
        )
        axes.plot(row["mean_weight"], place, **_mark(colour, marker), zorder=4)
        axes.plot(row["effective_weight"], place, **_hollow(colour), zorder=5)
    labels = [f"{row['kind']}\nn = {row['n']:,}" for _, row in kinds.iterrows()]
    axes.set_yticks(range(len(kinds)), labels)
    axes.set_ylim(len(kinds) - 0.4, -0.6)


def _draw_tokens(axes: Axes, tokens: pd.DataFrame) -> None:
    """The ends of the list of tokens that are frequent enough, each with its interval."""
    frequent = tokens[tokens["n"] >= FEWEST].sort_values("mean_weight", ascending=False)
    highest, lowest = frequent[:SHOWN], frequent[SHOWN:][-SHOWN:]
    gap = GAP if len(frequent) > 2 * SHOWN else 0.0
    places = [*range(len(highest)), *(SHOWN + gap + i for i in range(len(lowest)))]
    shown = pd.concat([highest, lowest])
    shown = shown.assign(place=places, w=shown["mean_weight"])
    shown = shown.assign(w_low=shown["ci_low"], w_high=shown["ci_high"])
    for kind, rows in shown.groupby("kind", sort=False):
        colour, marker = LOOKS[str(kind)]
        style.points(axes, rows, "w", "place", **_mark(colour, marker))
    axes.set_yticks(places, shown["name"], parse_math=False)
    axes.set_ylim(max(places, default=0) + 0.6, -0.6)
    if not places:
        axes.text(
            0.5, 0.5, f"no token occurs {FEWEST} times", transform=axes.transAxes, ha="center"
        )


def _mark(colour: str, marker: str) -> dict[str, Any]:
    return {"color": colour, "marker": marker, "markersize": 4.5, "linestyle": "none"}


def _hollow(colour: str) -> dict[str, Any]:
    hollow = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 0.9}
    return _mark(colour, "D") | {"markersize": 3.6} | hollow


def _handles() -> list[Line2D]:
    grey = style.GREY
    return [
        Line2D([], [], **_mark(grey, "o"), label="mean of w, 95 % interval"),
        Line2D([], [], **_hollow(grey), label="mean of w, weighed by TV(p, q)"),
        Line2D([], [], color=grey, linewidth=0.8, linestyle="--", label="mean over all tokens"),
    ]
