"""What a head has learned: the mean weight on the target by token and by kind of token.

A head sets w before the token is drawn and never sees the token. The weight of a token is therefore
the w it was drawn with; its mean shows where the head relies on the target. This module needs no
model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.intervals import mean_interval

NUMBER, OPERATOR, PUNCTUATION = "number", "operator", "punctuation"
CAPITALISED, LOWER_CASE, PIECE = "capitalised word", "lower-case word", "word piece"
SPACE, END = "white space", "end of text"

#: Levels of the table: one row for all tokens, one per kind, one per token and kind.
ALL, KIND, TOKEN = "all", "kind", "token"
QUANTILES = {f"weight_q{percent:02}": percent / 100 for percent in (5, 25, 50, 75, 95)}
FIGURES = (
    *("level", "name", "kind", "n", "texts", "mean_weight", "ci_low", "ci_high"),
    *(*QUANTILES, "mean_tv", "effective_weight"),
)

_OPERATORS = set("+-*/=<>%^|&~×÷")
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})


class About(NamedTuple):
    """The head that a table describes; ``head_kind`` names its kind."""

    pair: str
    task: str
    trained_on: str
    head_kind: str


def tabulate(tokens: pd.DataFrame, about: About) -> pd.DataFrame:
    """Summarise tokens: all, by kind, by token; each level sorted by falling mean weight.

    ``tokens`` come from ``training.tokens.sample_tokens``. ``n`` counts occurrences and ``texts``
    the texts that contain them; the 95 % interval of the mean weight is over these texts. The
    effective weight is a mean weighted by TV(p, q): where the models agree, w has no effect.
    """
    levels: list[tuple[str, Iterable[tuple[str, str, pd.DataFrame]]]] = [
        (ALL, [("all tokens", "", tokens)]),
        (KIND, ((kind, kind, group) for kind, group in tokens.groupby("kind"))),
        (TOKEN, ((name, kind, group) for (name, kind), group in tokens.groupby(["name", "kind"]))),
    ]
    tables = [
        pd.DataFrame(
            [(*about, level, name, kind, *_figures(group)) for name, kind, group in groups],
            columns=[*About._fields, *FIGURES],
        ).sort_values("mean_weight", ascending=False, kind="stable")
        for level, groups in levels
    ]
    return pd.concat(tables, ignore_index=True)


def kind_of(text: str, before: str = "") -> str:
    """Return the kind of a token; ``text`` includes its leading space, ``before`` precedes it."""
    core = text.strip()
    if not core:
        return SPACE
    if core[0].isdigit():
        return NUMBER
    if core[0].isalpha():
        if text[0].isalpha() and before[-1:].isalpha():
            return PIECE
        return CAPITALISED if core[0].isupper() else LOWER_CASE
    return OPERATOR if set(core) <= _OPERATORS else PUNCTUATION


def readable(text: str) -> str:
    """Make white space visible and escape characters that cannot be printed."""
    visible = text.translate(_VISIBLE)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in visible)


def _figures(group: pd.DataFrame) -> tuple[float, ...]:
    """Return the columns of ``FIGURES`` from ``n`` on for a group of tokens."""
    weight, tv = group["weight"].to_numpy(), group["tv"].to_numpy()
    mean = mean_interval(weight, group["text"])
    quantiles = np.quantile(weight, list(QUANTILES.values())).tolist()
    effective = np.average(weight, weights=tv) if tv.any() else float("nan")
    return (len(group), mean.n, *mean[:3], *quantiles, tv.mean(), effective)
