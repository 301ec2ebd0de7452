"""Quality of texts: scores of a cell with their intervals, and differences between two settings.

Two settings are compared on the prompts that both have. Corpus BLEU is no mean over samples: it is
computed from the sums of ten terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from specbench.analysis.intervals import (
    Floats,
    Interval,
    Statistic,
    cluster_sums,
    interval,
    paired_interval,
    ratio,
    ratio_difference,
)
from specbench.analysis.proportions import (
    is_binary,
    paired_difference,
    proportion_interval,
    with_rare_differences,
)
from specbench.errors import UsageError
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.shown import PHASES
from specbench.tasks.metrics import BLEU
from specbench.tasks.metrics.overlap import TERMS, corpus_bleu

QUALITY, COMPLETED, TOKENS = "quality", "completed_quality", "output_tokens"
AT_LIMIT, REPETITION = "length_limit_rate", "repetition"
#: What a lossy rule may change about texts; ``text_differences`` compares them with plain SD's.
OF_TEXTS = (QUALITY, COMPLETED, TOKENS, AT_LIMIT, REPETITION)
#: Columns of samples from which ``text_differences`` are computed.
TEXT_COLUMNS = (
    "sample_id",
    QUALITY,
    "quality_metric",
    BLEU_TERMS,
    TOKENS,
    "stopped_by",
    REPETITION,
)


def phase_terms(cell: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Return numerator and denominator of each of ``PHASES`` per text; none without marks."""
    if "inside_emitted" not in cell or cell["inside_emitted"].isna().all():
        return {}
    outside = (cell[name] - cell[f"inside_{name}"] for name in ("accepted", "proposed"))
    terms = [(cell["inside_emitted"], cell["output_tokens"])]
    terms += [(cell["inside_accepted"], cell["inside_proposed"]), tuple(outside)]
    return dict(zip(PHASES, terms, strict=True))


def score_interval(cell: pd.DataFrame, column: str, metric: object) -> Interval:
    """Return a quality metric of a cell with its 95 % interval.

    The value is the mean over samples (corpus BLEU for BLEU); blank samples are ignored. Scores
    that are all 0 or 1, as for accuracy and pass@1, are treated as a proportion. ``column`` holds
    the scores: ``quality``, or the metric's name.

    Raises:
        UsageError: The terms of BLEU are missing or unreadable; also raised by the functions below.
    """
    scored = cell[cell[column].notna()]
    if metric != BLEU and is_binary(scored[column]):
        return proportion_interval(scored[column], scored["sample_id"])
    terms, figure = score_terms(scored, column, metric)
    return interval(cluster_sums(terms, scored["sample_id"])[1], figure)


def score_terms(scored: pd.DataFrame, column: str, metric: object) -> tuple[Floats, Statistic]:
    """Return the terms [samples, k] of a quality metric, and its statistic of their totals."""
    if metric == BLEU:
        return _bleu_terms(scored), corpus_bleu
    return np.column_stack([scored[column], np.ones(len(scored))]), ratio


def _bleu_terms(scored: pd.DataFrame) -> Floats:
    """Return the terms of corpus BLEU [samples, TERMS]."""
    if BLEU_TERMS not in scored:
        raise UsageError(f"the samples have a BLEU but no column {BLEU_TERMS}: score the run again")
    try:
        terms = [[int(n) for n in str(text).split()] for text in scored[BLEU_TERMS]]
        return np.asarray(terms, dtype=np.float64).reshape(len(scored), TERMS)
    except ValueError as error:
        raise UsageError(
            f"{BLEU_TERMS} of a sample is not {TERMS} integers: score the run again"
        ) from error


def quality_difference(samples: pd.DataFrame, base: pd.DataFrame) -> Interval:
    """Return the quality of one setting minus another's on a task, paired by prompt."""
    samples, base = samples[samples["quality"].notna()], base[base["quality"].notna()]
    ids, base_ids = samples["sample_id"], base["sample_id"]
    if (samples["quality_metric"] == BLEU).any():
        sides = _bleu_terms(samples), ids, _bleu_terms(base), base_ids
        figure = paired_interval(
            *sides,
            lambda totals: corpus_bleu(totals[..., :TERMS]) - corpus_bleu(totals[..., TERMS:]),
        )
        means = samples["quality"].groupby(ids).mean() - base["quality"].groupby(base_ids).mean()
        differences = means.dropna().to_numpy()
        return with_rare_differences(figure, differences)
    return paired_difference(samples["quality"], ids, base["quality"], base_ids)


def text_differences(
    samples: pd.DataFrame, base: pd.DataFrame, names: Sequence[str] = OF_TEXTS
) -> dict[str, Interval]:
    """Return figures of ``OF_TEXTS`` of one setting minus another's on a task, paired by prompt.

    The quality of completed texts is compared on the prompts that both completed.
    """
    samples, base = samples.filter(TEXT_COLUMNS), base.filter(TEXT_COLUMNS)  # fewer columns to copy

    def mean_difference(column: str) -> Interval:
        first, second = samples[samples[column].notna()], base[base[column].notna()]
        terms = [np.column_stack([rows[column], np.ones(len(rows))]) for rows in (first, second)]
        sides = (terms[0], first["sample_id"]), (terms[1], second["sample_id"])
        return paired_interval(*sides[0], *sides[1], ratio_difference)

    def at_limit() -> Interval:
        ends, base_ends = samples["stopped_by"] == "length", base["stopped_by"] == "length"
        return paired_difference(ends, samples["sample_id"], base_ends, base["sample_id"])

    figures: dict[str, Callable[[], Interval]] = {
        QUALITY: lambda: quality_difference(samples, base),
        COMPLETED: lambda: quality_difference(completed(samples), completed(base)),
        TOKENS: lambda: mean_difference("output_tokens"),
        AT_LIMIT: at_limit,
        REPETITION: lambda: mean_difference("repetition"),
    }
    return {name: figures[name]() for name in names}


def completed(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples that are known to have ended by themselves, not at the limit."""
    return samples[samples["stopped_by"].notna() & (samples["stopped_by"] != "length")]
