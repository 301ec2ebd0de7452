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
from specbench.runs.labels import method_label

COUNTS = ("proposed", "accepted", "emitted")


def most_drafts(records: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest number of drafts of a recorded round; 0 if no round is recorded."""
    rounds = (record.get("per_round") or {} for record in records)
    return max((drafts for r in rounds for drafts in r.get("proposed", ())), default=0)


def priced_counts(records: Sequence[Mapping[str, Any]]) -> PricedRounds:
    """Price the recorded rounds of a cell for each number of drafts from 1 to N, at least 1."""
    cell, most = records[0], most_drafts(records)
    records = [record for record in records if record.get("per_round")]
    rounds = [record["per_round"] for record in records]
    steps = [list(zip(*(r[name] for name in COUNTS), strict=True)) for r in rounds]
    whole = [accepted for text in steps for _, accepted, emitted in text if emitted > accepted]
    last = whole.count(most) / max(1, whole.count(most) + whole.count(most - 1))
    flags = [_flags(text, most, last) for text in steps]
    length = np.array([len(text) for text in flags])
    accepted = np.zeros((len(flags), length.max()))
    for row, text in zip(accepted, flags, strict=True):
        row[: len(text)] = text
    reach = reach_of(accepted, most)
    lengths = range(1, most + 1)
    walks = [
        starts(reach[..., : size + 1], np.full(accepted.shape, size), length) for size in lengths
    ]
    number = np.column_stack([walk.sum(-1) for walk in walks])
    names = [f"{record['task']} {record['sample_id']}" for record in records]
    _, sums = cluster_sums(np.column_stack([length, number]), names)
    label = f"{method_label(cell)}, recorded at N = {most}"
    return PricedRounds(label, "fixed", (*lengths,), sums[:, 0], sums[:, 1:], sums[:, 1:] * lengths)


def _flags(rounds: Sequence[tuple[int, int, int]], most: int, last: float) -> list[float]:
    """Return the probability of acceptance at each token of a text's rounds."""
    flags: list[float] = []
    for _, accepted, emitted in rounds:
        flags += [1.0] * accepted
        if emitted > accepted:
            flags.append(last if accepted == most else 0.0)
    return flags
