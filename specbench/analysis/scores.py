"""How the scores of a cell's samples become figures: means, corpus BLEU and pass@k."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from specbench.analysis.frames import BLEU_TERMS
from specbench.analysis.intervals import (
    Floats,
    Interval,
    Statistic,
    cluster_sums,
    interval,
    is_binary,
    paired_difference,
    paired_interval,
    proportion_interval,
    ratio,
)
from specbench.errors import UsageError
from specbench.metrics import BLEU, METRICS
from specbench.metrics.bleu import TERMS, corpus_bleu
from specbench.metrics.passk import BUDGETS, pass_at_k

PASS = "pass@1"
_PROMPT = "sample_id"


def score_interval(cell: pd.DataFrame, column: str, metric: object) -> Interval:
    """Return the figure of one metric over a cell, with its 95 % interval over prompts.

    It is the mean over samples, and corpus BLEU for BLEU; blank samples are left out. Where all
    scores are 0 or 1, as those of accuracy and pass@1, it is a proportion.

    Args:
        cell: Samples of one cell.
        column: Where the scores are: ``quality``, or the metric's name.
        metric: The metric's name, or blank where there is none.

    Raises:
        UsageError: A sample lacks the terms of its BLEU, or they are not readable.
    """
    scored = cell[cell[column].notna()]
    if metric != BLEU and is_binary(scored[column]):
        return proportion_interval(scored[column], scored[_PROMPT])
    terms, figure = score_terms(scored, column, metric)
    _, sums = cluster_sums(terms, scored[_PROMPT])
    return interval(sums, figure)


def score_terms(scored: pd.DataFrame, column: str, metric: object) -> tuple[Floats, Statistic]:
    """Return what a metric's figure is made of: terms of each sample, and a function of their sums.

    Args:
        scored: Samples, none of them without a score.
        column: Where the scores are: ``quality``, or the metric's name.
        metric: The metric's name, or blank where there is none.

    Returns:
        [samples, k] terms, and the figure of totals [..., k].

    Raises:
        UsageError: A sample lacks the terms of its BLEU, or they are not readable.
    """
    if metric == BLEU:
        return _bleu_terms(scored), corpus_bleu
    return np.column_stack([scored[column], np.ones(len(scored))]), ratio


def quality_difference(own: pd.DataFrame, base: pd.DataFrame) -> Interval:
    """Return the quality of one setting minus another's, with its interval paired by prompt.

    Args:
        own: Samples of a setting on one task.
        base: Those of another, by the same metric.

    Raises:
        UsageError: A sample lacks the terms of its BLEU, or they are not readable.
    """
    sides = [rows[rows["quality"].notna()] for rows in (own, base)]
    if (own["quality_metric"] == BLEU).any():
        (terms, ids), (base_terms, base_ids) = ((_bleu_terms(r), r[_PROMPT]) for r in sides)
        return paired_interval(terms, ids, base_terms, base_ids, _bleu_difference)
    (values, ids), (base_values, base_ids) = ((r["quality"], r[_PROMPT]) for r in sides)
    return paired_difference(values, ids, base_values, base_ids)


def _bleu_difference(totals: Floats) -> Floats:
    difference: Floats = corpus_bleu(totals[..., :TERMS]) - corpus_bleu(totals[..., TERMS:])
    return difference


def further_scores(cell: pd.DataFrame) -> Iterator[tuple[str, Interval, str]]:
    """Yield name, figure and unit of what a cell has beyond its quality."""
    for name, metric in METRICS.items():
        if name in cell and cell[name].notna().any():
            yield name, score_interval(cell, name, name), metric.unit
    passed = cell["quality"] if cell["quality_metric"].iloc[0] == PASS else cell.get(PASS)
    if passed is not None:
        yield from _pass_at_more(passed, cell[_PROMPT])


def _pass_at_more(passed: pd.Series, prompts: pd.Series) -> Iterator[tuple[str, Interval, str]]:
    """pass@2, pass@5 ... up to that of as many scored repeats as every prompt has."""
    tallies = passed.dropna().groupby(prompts).agg(["count", "sum"])
    fewest = int(tallies["count"].min()) if len(tallies) else 0
    for k in sorted({*BUDGETS, fewest}):
        if 1 < k <= fewest:
            values = [pass_at_k(int(n), int(c), k) for n, c in tallies.to_numpy()]
            repeated = np.repeat(values, fewest), np.repeat(tallies.index, fewest)
            yield f"pass@{k}", proportion_interval(*repeated), f"pass@{k}"


def shown_name(name: str) -> str:
    """Return what a metric is called in tables; of pass@k, its name."""
    return METRICS[name].unit if name in METRICS else name


def shown_scale(name: str) -> float:
    """Return the factor from a metric's score to the number shown; pass@k is shown as pass@1."""
    return METRICS[name if name in METRICS else PASS].scale


def _bleu_terms(scored: pd.DataFrame) -> Floats:
    """[samples, TERMS] what corpus BLEU is made of."""
    if BLEU_TERMS not in scored:
        raise UsageError(f"the samples have a BLEU but no column {BLEU_TERMS}: score the run again")
    try:
        terms = [[int(n) for n in str(text).split()] for text in scored[BLEU_TERMS]]
        return np.asarray(terms, dtype=np.float64).reshape(len(scored), TERMS)
    except ValueError as error:
        raise UsageError(
            f"{BLEU_TERMS} of a sample is not {TERMS} whole numbers: score the run again"
        ) from error
