"""Prices from recorded rounds alone, for every smaller N; no models and no texts are needed.

A round with N drafts shows, token by token, whether a draft is accepted there: yes for each
accepted draft, no for the first rejected one. With fewer drafts, the rounds would start elsewhere,
but the answer at each token would be the same. It is unknown where all N drafts were accepted, at
the token that the target added: there it is taken as likely as that of an N-th draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specbench.analysis.intervals import cluster_sums
from specbench.price.rounds import PricedRounds, reach_of, starts
from specbench.price.scores import padded
from specbench.runs.labels import method_label


def most_drafts(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest number of drafts of a recorded round; 0 if no round is recorded."""
    rounds = (record.get("per_round") or {} for record in records)
    return max((drafts for r in rounds for drafts in r.get("proposed", ())), default=0)


def priced_counts(records: Sequence[Mapping[str, Any]]) -> PricedRounds:
    """Price the recorded rounds of a cell for each number of drafts from 1 to N, at least 1."""
    cell, most = records[0], most_drafts(records)
    records = [record for record in records if record.get("per_round")]
    rounds = [record["per_round"] for record in records]
    steps = [[*zip(r["accepted"], r["emitted"], strict=True)] for r in rounds]
    # Drafts that were accepted before each token that the target added.
    ends = [accepted for text in steps for accepted, emitted in text if emitted > accepted]
    last = ends.count(most) / max(1, ends.count(most) + ends.count(most - 1))
    flags = [
        [flag for accepted, emitted in text for flag in _flags(accepted, emitted, most, last)]
        for text in steps
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
    label = f"{method_label(cell)}, recorded at N = {most}"
    return PricedRounds(label, "fixed", (*lengths,), sums[:, 0], sums[:, 1:], sums[:, 1:] * lengths)


def _flags(accepted: int, emitted: int, most: int, last: float) -> list[float]:
    """Return the probability of acceptance at each token of a round."""
    return [1.0] * accepted + [last if accepted == most else 0.0] * (emitted - accepted)
