"""What recorded laws tell: weights of a rule's texts, and the target's quality by them.

A text of a lossy rule has the weight w = prod p(y) / pi(y), with pi the law that emitted each token
(``run --record-laws``). Bonus tokens have pi = p. The mean of w is 1, and the weighted mean of a
score is the target's, as far as pi covers p: at temperature 0 and for rules that never emit some
tokens of p, the target confined to the others is estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from specbench.analysis.intervals import Floats, bootstrap, cluster_sums, ratio
from specbench.methods.registry import METHODS

QUALITY = "target_quality"  # predicted from a lossy rule's texts, and measured on the target's own
WEIGHT = "mean_weight_of_texts"  # 1, if the recorded laws are those that the tokens came from
EFFECTIVE = "effective_samples"  # share of the samples that equally weighted ones would need
FEW = 0.2  # share of effective samples, below which few texts have most of the weight
DIVERGENCE = "divergence"  # KL(pi || p)
UNCOVERED = "uncovered"  # mass of p that pi never emits
EXCLUDED = -690.0  # a lower log p stands for p = 0, see ``laws_of_tokens``
Record = Mapping[str, Any]


def weighted_figures(
    records: Sequence[Record], exact: Sequence[Record]
) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield metrics of a cell with recorded laws: predicted and measured, ``[1 + RESAMPLES]``.

    ``exact`` are samples of methods that emit the target's distribution, on the same prompts.
    """
    if not all("log_law" in record["per_round"] for record in records):
        return
    terms = np.array([_terms(record) for record in records])
    prompts, sums = cluster_sums(terms, [record["sample_id"] for record in records])
    count, weight, square, tokens, divergence, uncovered, *_ = bootstrap(sums).T
    unknown = np.full_like(count, np.nan)
    yield WEIGHT, np.ones_like(count), weight / count
    yield EFFECTIVE, unknown, ratio(np.stack((weight**2, square * count), -1))
    excluded = any(_excludes(record) for record in records)
    yield DIVERGENCE, unknown, unknown if excluded else divergence / tokens
    yield UNCOVERED, unknown, uncovered / tokens
    scored = [record for record in exact if record.get("quality") is not None]
    if scored and all(record.get("quality") is not None for record in records):
        terms = np.array([(record["quality"], 1.0) for record in scored])
        others, target = cluster_sums(terms, [record["sample_id"] for record in scored])
        _, rows, columns = np.intersect1d(prompts, others, return_indices=True)
        totals = bootstrap(np.hstack([sums[rows][:, [6, 1]], target[columns]]))
        yield QUALITY, ratio(totals[:, :2]), ratio(totals[:, 2:])


def is_exact(record: Record) -> bool:
    """Return whether a sample was decoded by a method that emits the target's distribution."""
    method = METHODS.get(record["method"])
    return method is not None and method.exact


def _excludes(record: Record) -> bool:
    """Return whether p excludes a token of a text, so that log pi / p is infinite."""
    return min(chain.from_iterable(record["per_round"]["log_p"]), default=0.0) < EXCLUDED


def _terms(record: Record) -> list[float]:
    """Return a sample's terms: 1, w, w^2, tokens, sums of log pi / p and uncovered, w quality."""
    rounds = record["per_round"]
    log_p, log_law, uncovered = (
        np.array([*chain.from_iterable(rounds[name])]) for name in ("log_p", "log_law", "uncovered")
    )
    weight = float(np.exp((log_p - log_law).sum()))
    quality = record.get("quality")
    divergence = float((log_law - log_p).sum())
    return [
        *(1.0, weight, weight**2, len(log_p), divergence, float(uncovered.sum())),
        weight * (quality if quality is not None else 0.0),
    ]
