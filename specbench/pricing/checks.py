"""Whether a price holds: are the texts the target's, and do recorded rounds agree with it?

Two numbers have mean 0 at every token that is drawn from p, whatever came before:

    log p(y) + H(p)                       texts of another temperature are off;
    min(1, q(y) / p(y)) - (1 - TV(p, q))  so are those of a rule that leans towards the draft.

Their sums over a text are martingales, so prompts are independent clusters with mean 0. The first
one needs a temperature above 0; at 0 every token must be the target's first choice, or its second
one where both may be equally likely: there, half-precision and quantised weights round otherwise in
the pass over the text than in the steps that wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from specbench.analysis.statistics.intervals import Interval, bootstrap, estimate, ratio
from specbench.analysis.tables.table import Field, Table, number, with_interval
from specbench.decoding.drafters.policies import get_policy
from specbench.pricing.rounds import TINY, acceptance, price
from specbench.pricing.scores import Scores, drafter_of, means_by_prompt, name_of
from specbench.runs.model import SampleRecord

SURE = 4.0  # standard errors; correct texts of many prompts pass this in 1 of 16,000 cases
ROUNDING = 0.01  # share of other tokens at temperature 0 that rounding may change
TIED = 0.55  # largest probability of a first choice that a second one may come near to


def sure(prompts: int) -> float:
    """Return the standard errors that chance passes as rarely with few prompts as ``SURE``.

    The error is estimated from the prompts themselves, so its ratio has Student's distribution.
    """
    return float(stdtrit(max(prompts - 1, 1), ndtr(SURE)))


class Deviation(NamedTuple):
    """How far a mean over prompts is from what it must be."""

    name: str
    mean: float  # per token
    errors: float  # in standard errors over prompts
    is_sure: bool  # whether it is no chance


def deviations(scores: Scores) -> list[Deviation]:
    """Compare texts with the target's law; see the module."""
    if scores.temperature == 0:
        may_be_tied = (scores.rank_p == 2) & (scores.top_p <= TIED)
        others = (scores.rank_p > 1) & ~may_be_tied & scores.is_token
        wrong = float(others.sum() / scores.length.sum())
        errors = sure(len(np.unique(scores.prompt))) * wrong / ROUNDING
        return [Deviation("not the target's first choice", wrong, errors, wrong > ROUNDING)]
    terms = {
        "log p + H(p)": np.log(np.maximum(scores.p, TINY)) + scores.entropy_p,
        "min(1, q / p) - (1 - TV)": acceptance(scores) - (1 - scores.tv),
    }
    columns = [np.where(scores.is_token, term, 0).sum(-1) for term in terms.values()]
    sums = scores.by_prompt(np.column_stack([*columns, scores.length]))
    total, n = sums.sum(0), len(sums)
    error = np.sqrt(n * sums.var(0, ddof=1)) if n > 1 else np.abs(sums[0])
    errors = (total / np.maximum(error, TINY)).tolist()
    return [
        Deviation(name, float(total[i] / total[-1]), errors[i], abs(errors[i]) > sure(n))
        for i, name in enumerate(terms)
    ]


class PriceCheck(NamedTuple):
    """Tokens per round of a run's cell, as priced and as recorded."""

    label: str
    predicted: Interval
    measured: Interval
    difference: Interval  # measured - predicted, paired by prompt
    is_sure: bool  # whether the difference is no chance


def compare(scores: Scores, records: Sequence[SampleRecord]) -> PriceCheck:
    """Compare the price of a run's cell with its recorded rounds on the same prompts.

    The price is that of the texts of all other lossless cells, if there are any, else of its own.
    The cell is one of ``sd``, ``match``, ``block`` or ``sd-adaptive``.
    """
    cell, names = records[0], [*map(name_of, records)]
    others = [row for row, text in enumerate(scores.names) if text.method != names[0].method]
    scores = scores.of(others) if others else scores
    terms = [(sum(tokens), len(tokens)) for tokens in (r.per_round.emitted or [] for r in records)]
    labels, measured = means_by_prompt(np.array(terms), names)
    drafter, rule, size = drafter_of(cell), cell.method, cell.draft_length
    stops = f"adaptive:{cell.cost}" if rule == "sd-adaptive" else drafter.policy
    policy = get_policy(stops or "fixed")
    priced = price(scores, drafter.kind, policy, [size], rule=rule)
    prompts = np.unique(scores.prompt)
    shared, rows, measured_rows = np.intersect1d(prompts, labels, return_indices=True)
    predicted = np.column_stack([priced.tokens, priced.rounds])[rows]
    totals = bootstrap(np.hstack([predicted, measured[measured_rows]]))
    sides = ratio(totals[:, :2]), ratio(totals[:, 2:])
    gap, n = sides[1] - sides[0], len(shared)
    return PriceCheck(
        f"{rule}, {drafter}, N = {size}",
        estimate(sides[0], n),
        estimate(sides[1], n),
        estimate(gap, n),
        bool(abs(gap[0]) > sure(n) * max(gap[1:].std(), TINY)),
    )


def comparison_table(comparisons: Sequence[PriceCheck], title: str) -> Table:
    """Return a table of prices beside recorded rounds."""
    fields: list[Field[PriceCheck]] = [
        ("cell", lambda row: row.label),
        ("priced", lambda row: with_interval(*row.predicted[:3], ".3f")),
        ("recorded", lambda row: with_interval(*row.measured[:3], ".3f")),
        ("difference", lambda row: with_interval(*row.difference[:3], "+.3f")),
    ]
    return Table.of(comparisons, fields, title)


def deviation_table(deviations: Sequence[Deviation], title: str) -> Table:
    """Return a table of what must be 0 for texts of the target."""
    fields: list[Field[Deviation]] = [
        ("mean over tokens", lambda row: row.name),
        ("value", lambda row: number(row.mean, "+.4f")),
        ("standard errors", lambda row: number(row.errors, "+.1f")),
    ]
    return Table.of(deviations, fields, title)
