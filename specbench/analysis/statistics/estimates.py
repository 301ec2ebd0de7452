"""Estimates with 95 % intervals: a figure of one side, and the contrast of two sides.

Two sides are compared on the prompts that both have, and the metric chooses the interval of their
contrast. A difference of scores has Tango's interval if all are 0 or 1, else Student's t. Corpus
BLEU, which is no mean but computed from the sums of ten terms, has the bootstrap's, and so have
differences of other rates and ratios of speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.statistics import intervals, proportions
from specbench.analysis.statistics.intervals import Floats, Interval, Statistic
from specbench.analysis.tables.shown import ENDS, PHASES
from specbench.errors import UsageError
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.frames import rows_of
from specbench.tasks.metrics import BLEU
from specbench.tasks.metrics.overlap import TERMS, corpus_bleu

#: Figures of one side.
QUALITY, COMPLETED, TOKENS = "quality", "completed_quality", "output_tokens"
AT_LIMIT, REPETITION, ZERO_P = "length_limit_rate", "repetition", "zero_p"
#: Differences between two sides.
QUALITY_LESS, ACCEPTANCE_LESS = "quality_difference", "acceptance_difference"
COMPLETED_LESS, TOKENS_LESS = "completed_quality_difference", "output_tokens_difference"
AT_LIMIT_LESS, REPETITION_LESS = "length_limit_difference", "repetition_difference"
#: Ratios of two sides: seconds per sample, inverted; tokens per second; tokens per sample; and
#: tokens per byte of the text.
TIMES, SPEED, LENGTH = "times_as_fast", "times_tokens_per_second", "length_ratio"
DENSITY = "tokens_per_byte_ratio"
#: Of benchmarks: tokens per second of full batches, and seconds of a round.
SERVED, ROUND = "times_served_tokens_per_second", "round_seconds_ratio"
#: Quality minus that of a front at the same gain, and at its nearest point of lower gain; the share
#: of a saving of time that ``sd`` reaches by its draft length alone.
ABOVE, ABOVE_MEASURED, SHARE = "quality_above", "quality_above_measured", "share_of_gain"
#: What a lossy rule may change about texts, with its contrast to plain SD.
OF_TEXTS = {
    QUALITY: QUALITY_LESS,
    COMPLETED: COMPLETED_LESS,
    TOKENS: TOKENS_LESS,
    AT_LIMIT: AT_LIMIT_LESS,
    REPETITION: REPETITION_LESS,
}
#: Columns of samples from which ``OF_TEXTS`` and their contrasts are computed.
TEXT_COLUMNS = (
    *("sample_id", QUALITY, "quality_metric", BLEU_TERMS),
    *(TOKENS, "stopped_by", REPETITION),
)
SAMPLES, SECONDS = "samples", "seconds"


class Rate(NamedTuple):
    """A ratio of two sums over samples, see ``term``; two sides differ by a ratio or difference."""

    above: str
    below: str = SAMPLES
    as_ratio: bool = False


RATES = {
    ACCEPTANCE_LESS: Rate("accepted", "proposed"),
    TOKENS_LESS: Rate(TOKENS),
    REPETITION_LESS: Rate(REPETITION),
    TIMES: Rate(SAMPLES, SECONDS, as_ratio=True),
    SPEED: Rate(TOKENS, SECONDS, as_ratio=True),
    LENGTH: Rate(TOKENS, as_ratio=True),
    DENSITY: Rate(TOKENS, "delivered_bytes", as_ratio=True),
    SERVED: Rate("emitted", "served_seconds", as_ratio=True),
    ROUND: Rate("decode_seconds", "rounds", as_ratio=True),
}


def term(samples: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of samples, or 1 or the seconds with prefill of each."""
    if name == SAMPLES:
        return pd.Series(1.0, samples.index)
    if name == SECONDS:
        return samples["prefill_seconds"] + samples["decode_seconds"]
    # Autoregressive drafts nothing.
    return samples[name].fillna(0) if name == "accepted" else samples[name]


def contrast(samples: pd.DataFrame, base: pd.DataFrame, metric: str) -> Interval:
    """Return a contrast of one side with another on a task, paired by prompt.

    Blank scores and ends are ignored, and so are blank terms of a mean's difference; a blank term
    of any other rate makes it unknown. The quality of completed texts is compared on the prompts
    that both completed, if these suffice for an interval. The metric is one of ``RATES``,
    ``QUALITY_LESS``, ``COMPLETED_LESS`` or ``AT_LIMIT_LESS``.

    Raises:
        UsageError: The terms of BLEU are missing or unreadable.
    """
    sides = samples, base
    if metric in (QUALITY_LESS, COMPLETED_LESS):
        texts = [side.filter(TEXT_COLUMNS) for side in sides]  # fewer columns to copy
        texts = [*map(completed, texts)] if metric == COMPLETED_LESS else texts
        scored, base_scored = (side[side[QUALITY].notna()] for side in texts)
        first, second = ((side[QUALITY], side["sample_id"]) for side in (scored, base_scored))
        shared = len({*first[1]} & {*second[1]})
        if metric == COMPLETED_LESS and shared < intervals.FEWEST:
            return Interval(math.nan, math.nan, math.nan, shared)
        if not (scored["quality_metric"] == BLEU).any():
            return proportions.paired_difference(first, second)
        figure = intervals.paired_interval(
            (_bleu_terms(scored), first[1]),
            (_bleu_terms(base_scored), second[1]),
            lambda totals: corpus_bleu(totals[..., :TERMS]) - corpus_bleu(totals[..., TERMS:]),
        )
        means, base_means = (scores.groupby(prompts).mean() for scores, prompts in (first, second))
        return proportions.with_rare_differences(figure, (means - base_means).dropna().to_numpy())
    if metric == AT_LIMIT_LESS:
        ended = (side[side["stopped_by"].notna()] for side in sides)
        first, second = ((side["stopped_by"] == "length", side["sample_id"]) for side in ended)
        return proportions.paired_difference(first, second)
    rate = RATES[metric]
    if rate.below == SAMPLES and not rate.as_ratio:
        sides = samples[samples[rate.above].notna()], base[base[rate.above].notna()]
    first, second = (
        (np.column_stack([term(side, name) for name in rate[:2]]), side["sample_id"])
        for side in sides
    )
    statistic = intervals.paired_ratio if rate.as_ratio else intervals.ratio_difference
    return intervals.paired_interval(first, second, statistic, log=rate.as_ratio)


def columns(metric: str, figure: Interval, prompts_per_unit: int = 1) -> dict[str, Any]:
    """Return the columns of an estimate in a long frame, over units of so many prompts."""
    value, low, high, units, _, least = figure
    n = units * prompts_per_unit
    ends = {"value": value, "ci_low": low, "ci_high": high, "least": least}
    return {"metric": metric, **ends, "n": n}


def wide(figures: Mapping[str, Interval]) -> dict[str, float]:
    """Return the columns of estimates in a wide frame: ``<name>``, ``<name>_low``, ``_high``."""
    return {
        name + end: value
        for name, figure in figures.items()
        for end, value in zip(ENDS, figure[:3], strict=True)
    }


def pivot(rows: pd.DataFrame, *keys: str) -> list[dict[Any, Any]]:
    """Return one row per setting of a comparison, which ``keys`` may distinguish further.

    It has the first known value of each column and, for each metric, the columns of ``wide`` and
    ``<metric>_reference``. ``noise`` is the largest.
    """
    ends = {"": "value", "_low": "ci_low", "_high": "ci_high", "_least": "least"}
    ends |= {"_reference": "reference"}
    settings, setting = [], ["label", "draft_length", "points", *keys]
    for _, group in rows.groupby(setting, sort=False, dropna=False):
        figures = {
            row["metric"] + end: row[column]
            for row in rows_of(group)
            for end, column in ends.items()
        }
        (facts,) = rows_of(group.bfill().head(1))
        settings.append(facts | figures | {"noise": group["noise"].max()})
    return settings


def share_terms(cell: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Return numerator and denominator per text of shares that were recorded.

    These are the tokens that the target would never emit and, of texts with marks, ``PHASES``.
    """
    shares: dict[str, tuple[pd.Series, pd.Series]] = {}
    if "inside_emitted" in cell and cell["inside_emitted"].notna().any():
        outside = (cell[name] - cell[f"inside_{name}"] for name in ("accepted", "proposed"))
        terms = [(cell["inside_emitted"], cell["output_tokens"])]
        terms += [(cell["inside_accepted"], cell["inside_proposed"]), tuple(outside)]
        shares |= dict(zip(PHASES, terms, strict=True))
    if ZERO_P in cell and cell[ZERO_P].notna().any():
        shares[f"{ZERO_P}_share"] = (cell[ZERO_P].fillna(0), cell["output_tokens"])
    return shares


def score_interval(cell: pd.DataFrame, column: str, metric: object) -> Interval:
    """Return a quality metric of a cell with its 95 % interval.

    The value is the mean over samples (corpus BLEU for BLEU); blank samples are ignored. Scores
    that are all 0 or 1, as for accuracy and pass@1, are treated as a proportion. ``column`` holds
    the scores: ``quality``, or the metric's name.
    """
    scored = cell[cell[column].notna()]
    if metric != BLEU and proportions.is_binary(scored[column]):
        return proportions.proportion_interval(scored[column], scored["sample_id"])
    terms, figure = score_terms(scored, column, metric)
    return intervals.interval(intervals.cluster_sums(terms, scored["sample_id"])[1], figure)


def score_terms(scored: pd.DataFrame, column: str, metric: object) -> tuple[Floats, Statistic]:
    """Return the terms [samples, k] of a quality metric, and its statistic of their totals."""
    if metric == BLEU:
        return _bleu_terms(scored), corpus_bleu
    return np.column_stack([scored[column], np.ones(len(scored))]), intervals.ratio


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


def completed(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples that are known to have ended by themselves, not at the limit."""
    return samples[samples["stopped_by"].notna() & (samples["stopped_by"] != "length")]
