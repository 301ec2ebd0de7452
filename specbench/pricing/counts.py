"""Prices from recorded rounds alone, for every smaller N; no models and no texts are needed.

A round with N drafts shows, token by token, whether a draft is accepted there: yes for each
accepted draft, no for the first rejected one. With fewer drafts, the rounds would start elsewhere,
but the answer at each token would be the same. This holds for rules that judge every token by
itself and for drafts that depend on the text alone. It is unknown where all drafts were accepted,
at the token that the target added: there it is taken as likely as that of an N-th draft. Rounds are
the fewest if all of these are accepted and the most if none is, so both are priced too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from specbench.analysis.intervals import cluster_sums
from specbench.methods.registry import METHODS
from specbench.pricing.records import cells_of, drafter_of, first_prompts
from specbench.pricing.rounds import PricedRounds, reach_of, starts
from specbench.pricing.scores import Record, padded
from specbench.runs.labels import method_label

RULES = ("sd", "match")


class PricedCounts(NamedTuple):
    """The price of recorded rounds, and its bounds."""

    likely: PricedRounds  # unknown drafts are as likely as an N-th one
    least: PricedRounds  # none of them is accepted
    most: PricedRounds  # all of them are


def counted_cells(
    records: Sequence[Record], tasks: Collection[str] = (), limit: int | None = None
) -> list[list[Record]]:
    """Return the cells whose rounds have a price: of servers, or of lossless rules by token."""
    return [
        first_prompts(cell, limit)
        for cell in cells_of(records)
        if (not tasks or cell[0]["task"] in tasks)
        and (cell[0]["method"] in RULES or cell[0]["method"] not in METHODS)
        and (drafter := drafter_of(cell[0])).kind.needs_draft
        and not drafter.policy
        and most_drafts(cell) > 1
    ]


def most_drafts(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest number of drafts of a recorded round; 0 if no round is recorded."""
    rounds = (record.get("per_round") or {} for record in records)
    return max((drafts for r in rounds for drafts in r.get("proposed", ())), default=0)


def priced_counts(records: Sequence[Mapping[str, Any]]) -> PricedCounts:
    """Price the recorded rounds of a cell for each number of drafts from 1 to N, at least 1."""
    most, recorded = most_drafts(records), [r["per_round"] for r in records if r.get("per_round")]
    # Drafts that were accepted before each token that the target added.
    ends = [
        accepted
        for r in recorded
        for accepted, emitted in zip(r["accepted"], r["emitted"], strict=True)
        if emitted > accepted
    ]
    last = ends.count(most) / max(1, ends.count(most) + ends.count(most - 1))
    return PricedCounts(*(_priced(records, most, unknown) for unknown in (last, 0.0, 1.0)))


def _priced(records: Sequence[Mapping[str, Any]], most: int, unknown: float) -> PricedRounds:
    """Return the price if unknown drafts are accepted with a probability."""
    cell = records[0]
    records = [record for record in records if record.get("per_round")]
    rounds = [record["per_round"] for record in records]
    flags = [
        [
            flag
            for step in zip(r["proposed"], r["accepted"], r["emitted"], strict=True)
            for flag in _flags(*step, unknown)
        ]
        for r in rounds
    ]
    accepted = padded(flags)
    length = np.array([len(text) for text in flags])
    lengths = range(1, most + 1)
    number = [
        starts(reach_of(accepted, size), np.full(accepted.shape, size), length).sum(-1)
        for size in lengths
    ]
    names = [f"{record['task']} {record['sample_id']}" for record in records]
    _, sums = cluster_sums(np.column_stack([length, *number]), names)
    numbers = sums[:, 0], sums[:, 1:], sums[:, 1:] * lengths
    return PricedRounds(drafter_of(cell).kind, "fixed", (*lengths,), *numbers)


def _flags(proposed: int, accepted: int, emitted: int, unknown: float) -> list[float]:
    """Return the probability of acceptance at each token of a round."""
    return [1.0] * accepted + [unknown if accepted == proposed else 0.0] * (emitted - accepted)


def counted_label(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the label of a cell and the number of drafts with which it was recorded."""
    return f"{method_label(records[0])}, recorded at N = {most_drafts(records)}"
