"""From samples to the tidy summary of a run, and from there to a table with one row per cell.

Two kinds of mean are kept apart: a *pooled* figure is a ratio of sums over all samples of a cell
(long outputs weigh more), a *sample mean* averages one figure per sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.frames import CELL, SUMMARY, typed
from specbench.analysis.intervals import (
    Floats,
    Interval,
    mean_interval,
    paired_interval,
    paired_ratio,
    paired_ratio_interval,
    proportion_interval,
    ratio,
    ratio_interval,
)
from specbench.analysis.scores import further_scores, score_interval
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE

#: What a cell shares with the ``autoregressive`` that its speed-up is over.
BASELINE = ["run_id", "pair", "task", "temperature", "engine", "batch_size"]
_TOKENS_OVER_TIME = ["output_tokens", "seconds"]
_PREDICTED = ["output_tokens", "prefill_seconds", "decode_seconds", "foreseen_emitted"]
_NOTHING = Interval(float("nan"), float("nan"), float("nan"), 0)


class Metric(NamedTuple):
    """A figure of a cell: the pooled ratio of two per-sample columns, or the mean of one."""

    name: str
    unit: str
    numerator: str
    denominator: str | None = None  # None: mean over samples


# The predicted figures are what theory makes of the probabilities that the rule recorded, see
# ``theory.tally``; each is to agree with the measured one that it is named after, and expected
# acceptance with the conditional rate: both are over the positions judged.
METRICS = (
    Metric("quality", "", "quality"),  # its unit is the task's metric
    Metric("draft_acceptance_rate", "fraction", "accepted", "proposed"),
    Metric("draft_acceptance_rate_sample_mean", "fraction", "draft_acceptance_rate"),
    Metric("acceptance_length", "tokens/round", "emitted", "rounds"),
    Metric("acceptance_length_sample_mean", "tokens/round", "acceptance_length"),
    Metric("conditional_acceptance_rate", "fraction", "accepted", "judged"),
    Metric("expected_acceptance", "fraction", "expected", "judged"),
    Metric("predicted_acceptance_length", "tokens/round", "foreseen_emitted", "rounds"),
    Metric("mean_weight", "fraction", "weights", "judged"),
    Metric("seconds_per_sample", "s", "seconds"),
    Metric("tokens_per_second", "tokens/s", *_TOKENS_OVER_TIME),
    Metric("tokens_per_second_sample_mean", "tokens/s", "tokens_per_second"),
    Metric("speedup", "x", *_TOKENS_OVER_TIME),  # over autoregressive, paired by prompt
    Metric("predicted_speedup", "x", "foreseen_emitted"),  # at the measured time of a round
    Metric("prefill_seconds", "s", "prefill_seconds"),
    Metric("round_seconds", "s/round", "decode_seconds", "rounds"),
    Metric("draft_seconds", "s/round", "draft_seconds", "rounds"),
    Metric("verify_seconds", "s/round", "verify_seconds", "rounds"),
    Metric("accept_seconds", "s/round", "accept_seconds", "rounds"),
    Metric("latency_seconds", "s", "latency_seconds"),
    Metric("output_tokens", "tokens", "output_tokens"),
    Metric("rounds", "rounds", "rounds"),
    Metric("length_limit_rate", "fraction", "at_limit"),
)


def summarise(samples: pd.DataFrame) -> pd.DataFrame:
    """Summarise samples: one row per cell and metric, columns ``frames.SUMMARY``.

    After the figures that every cell has come the task's metrics beyond the one that stands for
    quality, and pass@k where there are repeats enough, each under its own name.

    A cell is everything that shares ``frames.CELL``; ``n`` counts its prompts. Intervals cover 95 %
    over prompts, see ``intervals``. A time is the whole time of a sample, prefill included.

    Raises:
        UsageError: There are no samples.
    """
    if samples.empty:
        raise UsageError("There are no samples to summarise; run at least one.")
    terms = _with_terms(samples)
    baselines = dict(list(terms[terms["method"] == AUTOREGRESSIVE].groupby(BASELINE)))
    rows = [
        (*cell, name, found.value, found.low, found.high, found.n, unit)
        for cell, group in terms.groupby(list(CELL), sort=False, dropna=False)
        for name, found, unit in (
            *_measured(group, baselines.get(_baseline_key(group))),
            *further_scores(group),
        )
    ]
    return typed(pd.DataFrame(rows, columns=list(SUMMARY)), SUMMARY, "the summary")


def wide(summary: pd.DataFrame) -> pd.DataFrame:
    """One row per cell, for tables and figures.

    Returns:
        The cell's columns, ``quality_metric`` (the unit of quality), and for every metric its
        value under its own name and its interval as ``<metric>_low`` and ``<metric>_high``.
    """
    cell = summary.groupby(list(CELL), sort=False, dropna=False).ngroup()
    table = summary.assign(cell=cell).drop_duplicates("cell").set_index("cell")[list(CELL)]
    for name in (*(metric.name for metric in METRICS), *further_metrics(summary)):
        rows = summary["metric"] == name
        found = summary[rows].set_index(cell[rows])
        if name == "quality":
            table["quality_metric"] = found["unit"]
        table[name] = found["value"]
        table[f"{name}_low"] = found["ci_low"]
        table[f"{name}_high"] = found["ci_high"]
    return table.reset_index(drop=True)


def further_metrics(summary: pd.DataFrame) -> list[str]:
    """Return the metrics of a summary that only some tasks have: those beyond quality, pass@k."""
    known = {metric.name for metric in METRICS}
    return [name for name in summary["metric"].unique() if name not in known]


def _with_terms(samples: pd.DataFrame) -> pd.DataFrame:
    """Add, per sample, the sums that pooled figures are made of; prompts become numbers."""
    emitted = samples["acceptance_length"] * samples["rounds"]
    expected = samples["expected_acceptance"] * samples["judged"]
    return samples.assign(
        sample_id=pd.factorize(samples["sample_id"], sort=True)[0],  # sorted and summed faster
        seconds=samples["prefill_seconds"] + samples["decode_seconds"],
        emitted=emitted,
        expected=expected,
        foreseen_emitted=expected + emitted - samples["accepted"],
        weights=samples["mean_weight"] * samples["judged"],
        at_limit=np.where(samples["stopped_by"] == "length", 1.0, 0.0),
    )


def _baseline_key(group: pd.DataFrame) -> tuple[object, ...]:
    return tuple(group[name].iloc[0] for name in BASELINE)


def _measured(
    group: pd.DataFrame, baseline: pd.DataFrame | None
) -> Iterator[tuple[str, Interval, object]]:
    """Every figure of one cell with its interval and unit."""
    prompts = group["sample_id"]
    for metric in METRICS:
        unit: object = metric.unit
        if metric.name == "quality":
            unit = group["quality_metric"].iloc[0]
            found = score_interval(group, metric.name, unit)
        elif metric.name == "speedup":
            found = _speedup(group, baseline)
        elif metric.name == "predicted_speedup":
            found = _predicted_speedup(group, baseline)
        elif metric.name == "length_limit_rate":
            found = proportion_interval(group[metric.numerator], prompts)
        elif metric.denominator is None:
            found = mean_interval(group[metric.numerator], prompts)
        else:
            found = ratio_interval(group[metric.numerator], group[metric.denominator], prompts)
        yield metric.name, found, unit


def _speedup(group: pd.DataFrame, baseline: pd.DataFrame | None) -> Interval:
    if baseline is None:
        return _NOTHING
    return paired_ratio_interval(
        group[_TOKENS_OVER_TIME],
        group["sample_id"],
        baseline[_TOKENS_OVER_TIME],
        baseline["sample_id"],
    )


def _predicted_speedup(group: pd.DataFrame, baseline: pd.DataFrame | None) -> Interval:
    terms = group[_PREDICTED]
    if baseline is None or terms.isna().any(axis=None):
        return _NOTHING
    base = baseline[_TOKENS_OVER_TIME], baseline["sample_id"]
    return paired_interval(terms, group["sample_id"], *base, _at_predicted_length)


def _at_predicted_length(totals: Floats) -> Floats:
    """The speed-up if the rounds had brought the tokens predicted.

    Args:
        totals: [..., 6] those of ``_PREDICTED``, then tokens and seconds of the baseline.
    """
    tokens, prefill, decode, predicted, *base = np.moveaxis(totals, -1, 0)
    seconds = prefill + decode * ratio(np.stack([tokens, predicted], axis=-1))
    return paired_ratio(np.stack([tokens, seconds, *base], axis=-1))
