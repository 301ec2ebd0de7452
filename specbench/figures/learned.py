"""The weights a head gives, by kind of token and by token: what it has learned.

Left, per kind, the spread of w, its mean, and its mean weighed by how much the models disagree.
Right, the tokens with the highest and the lowest mean weight. Boxes span the quartiles, whiskers
the 5 % and 95 % quantiles; bars are 95 % intervals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specbench.analysis.learned import (
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
from specbench.errors import UsageError
from specbench.figures import style
from specbench.figures.style import Drawing, scaled

SHOWN = 12  # tokens at either end
FEWEST = 10  # occurrences of what is shown
GAP = 0.8  # rows between the two ends
OFFSET = 0.14  # rows between the two means of a kind

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
_BOX = dict(zip(QUANTILES, ("whislo", "q1", "med", "q3", "whishi"), strict=True))


@style.paged
def draw(table: pd.DataFrame) -> Drawing:
    """Draw what a head has learned; both panels share the axis of w.

    The data behind it is the whole table: a token's place is its place among all.

    Args:
        table: As ``analysis.learned.tabulate`` returns.

    Raises:
        UsageError: There is nothing in it.
    """
    if table.empty:
        raise UsageError("Nothing to draw: no token was sampled; sample more texts with --limit.")
    frequent = table[table["n"] >= FEWEST]
    mean = float(table.loc[table["level"] == ALL, "mean_weight"].iloc[0])

    figure, ((left, right),) = style.panels(1, 2, height=3.6, sharex=True)
    _draw_kinds(left, frequent[frequent["level"] == KIND])
    _draw_tokens(right, frequent[frequent["level"] == TOKEN])
    left.set_title("Kinds of token")
    right.set_title("Highest and lowest mean w")
    for axes in (left, right):
        axes.axvline(mean, color=style.GREY, linewidth=scaled(0.8), linestyle="--", zorder=1)
        axes.set_xlabel("Weight on the target w")
        axes.set_xlim(-0.06, 1.06)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
        axes.grid(axis="y", visible=False)
        if not axes.get_yticks().size:
            said = f"None occurs {FEWEST} times"
            axes.text(0.5, 0.6, said, transform=axes.transAxes, ha="center")
    figure.legend(handles=_handles(), loc="outside lower center", ncols=3)
    figure.suptitle(_title(table.iloc[0]), fontsize=scaled(8.5), parse_math=False)
    return Drawing(figure, table)


def _title(row: pd.Series) -> str:
    trained_on = row["trained_on"]
    elsewhere = "" if trained_on in ("", row["task"]) else f" trained on {trained_on}"
    return f"{row['task']} ({row['pair']}), {row['head_kind']} head{elsewhere}"


def _draw_kinds(axes: Axes, kinds: pd.DataFrame) -> None:
    """A box per kind from its quantiles, with both means, the highest on top."""
    for place, (_, row) in enumerate(kinds.iterrows()):
        colour, _ = LOOKS[row["kind"]]
        line = {"color": colour, "linewidth": scaled(0.8)}
        axes.bxp(
            [{name: row[quantile] for quantile, name in _BOX.items()}],
            positions=[place],
            widths=0.6,
            orientation="horizontal",
            showfliers=False,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": f"{colour}40", "edgecolor": colour, "linewidth": scaled(0.8)},
            medianprops=line | {"linewidth": scaled(1.4)},
            whiskerprops=line,
            capprops=line,
        )
        axes.plot(row["effective_weight"], place + OFFSET, **_hollow(colour), zorder=5)
    _draw_means(axes, kinds.assign(place=np.arange(len(kinds)) - OFFSET))
    labels = [f"{row['kind']}\nn = {row['n']:,}" for _, row in kinds.iterrows()]
    axes.set_yticks(range(len(kinds)), labels)
    axes.set_ylim(max(len(kinds), 1) - 0.4, -0.6)


def _draw_tokens(axes: Axes, tokens: pd.DataFrame) -> None:
    """The two ends of the list of tokens; beside them how often, and how much models disagree."""
    ranked = tokens.sort_values("mean_weight", ascending=False, kind="stable")
    highest, lowest = ranked[:SHOWN], ranked[SHOWN:][-SHOWN:]
    gap = GAP if len(ranked) > 2 * SHOWN else 0.0
    places = [*range(len(highest)), *(SHOWN + gap + i for i in range(len(lowest)))]
    shown = pd.concat([highest, lowest]).assign(place=places)
    _draw_means(axes, shown)
    axes.set_yticks(places, shown["name"], parse_math=False)
    axes.set_ylim(max([SHOWN, *places]) + 0.6, -0.6)
    columns = {
        1.16: ("n", shown["n"].map("{:,}".format)),
        1.3: ("TV", shown["mean_tv"].map(_short)),
    }
    for x, (header, cells) in columns.items():
        for place, cell in zip([-1.0, *places], [header, *cells], strict=True):
            axes.text(
                x,
                place,
                cell,
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                fontsize=scaled(6),
                color=style.GREY,
            )


def _draw_means(axes: Axes, rows: pd.DataFrame) -> None:
    """The mean weights of rows at their ``place``, with their intervals."""
    rows = rows.assign(w=rows["mean_weight"], w_low=rows["ci_low"], w_high=rows["ci_high"])
    for kind, group in rows.groupby("kind", sort=False):
        style.points(axes, group, "w", "place", **_mark(*LOOKS[str(kind)]), zorder=4)


def _short(share: float) -> str:
    """Two decimals without the zero in front."""
    return f"{share:.2f}".removeprefix("0")


def _mark(colour: str, marker: str) -> dict[str, Any]:
    size = scaled(6.0 if marker in "PX" else 4.5)  # a cross covers less than its square
    return {"color": colour, "marker": marker, "markersize": size, "linestyle": "none"}


def _hollow(colour: str) -> dict[str, Any]:
    rim = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": scaled(0.9)}
    return _mark(colour, "D") | rim | {"markersize": scaled(3.4)}


def _handles() -> list[Line2D]:
    grey = style.GREY
    return [
        Line2D([], [], **_mark(grey, "o"), label="mean w"),
        Line2D([], [], **_hollow(grey), label="mean w weighed by TV(p, q)"),
        Line2D(
            [], [], color=grey, linewidth=scaled(0.8), linestyle="--", label="mean w of all tokens"
        ),
    ]
