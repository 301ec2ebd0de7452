"""Summarise samples as a tidy table (one row per cell and metric) or a wide one (one row per cell).

There are two kinds of means: a *pooled* figure is a ratio of sums over all samples of a cell, in
which long outputs weigh more; a *sample mean* averages one figure per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.blocks import by_time_unit
from specbench.analysis.intervals import (
    Floats,
    Interval,
    Statistic,
    cluster_sums,
    interval,
    is_binary,
    mean_interval,
    paired_difference,
    paired_interval,
    paired_ratio,
    proportion_interval,
    ratio,
    ratio_difference,
    ratio_interval,
)
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.metrics import BLEU, shown_metric
from specbench.metrics import METRICS as TASK_METRICS
from specbench.metrics.bleu import TERMS, corpus_bleu
from specbench.metrics.passk import BUDGETS, pass_at_k
from specbench.runs.columns import BLEU_TERMS, TIMED_BASELINE
from specbench.runs.frames import (
    CELL,
    MEASURED,
    SAMPLES,
    SUMMARY,
    Selection,
    first_decodes,
    read_samples,
    read_summary,
    typed,
)

ACCEPTANCE, QUALITY, SPEEDUP, PASS = "draft_acceptance_rate", "quality", "speedup", "pass@1"
TOKENS, AT_LIMIT, REPETITION = "output_tokens", "length_limit_rate", "repetition"
COMPLETED = "completed_quality"
#: What a lossy rule may change about texts; ``text_differences`` compares them with plain SD's.
OF_TEXTS = (QUALITY, COMPLETED, TOKENS, AT_LIMIT, REPETITION)
#: Columns that a cell shares with its baseline, ``autoregressive``.
BASELINE = ["run_id", "pair", "task", "temperature", "engine", "batch_size", "session"]
#: Columns of samples from which ``text_differences`` are computed.
_OF_SAMPLES = ("sample_id", QUALITY, "quality_metric", BLEU_TERMS, TOKENS, "stopped_by", REPETITION)
_TIME_UNITS = ("s", "s/round", "tokens/s", "x")
_NOTHING = Interval(float("nan"), float("nan"), float("nan"), 0)

#: Maps the samples of a cell, and those of its baseline if any, to a figure.
Figure = Callable[[pd.DataFrame, pd.DataFrame | None], Interval]


class Metric(NamedTuple):
    """A figure of a cell."""

    name: str
    unit: str
    figure: Figure


def _mean(column: str) -> Figure:
    return lambda cell, _: mean_interval(cell[column], cell["sample_id"])


def _pooled(numerator: str, denominator: str) -> Figure:
    return lambda cell, _: ratio_interval(cell[numerator], cell[denominator], cell["sample_id"])


def _over_baseline(columns: list[str], statistic: Statistic) -> Figure:
    """Return a figure of the sums of ``columns`` and of the baseline's tokens and seconds."""

    def figure(cell: pd.DataFrame, baseline: pd.DataFrame | None) -> Interval:
        if baseline is None or cell[columns].isna().any(axis=None):
            return _NOTHING
        base = baseline[["output_tokens", "seconds"]]
        sides = cell[columns], cell["sample_id"], base, baseline["sample_id"]
        return paired_interval(*sides, statistic, log=True)

    return figure


def _at_predicted_length(totals: Floats) -> Floats:
    """Return the speed-up if rounds had emitted the predicted tokens, from totals [..., 6]."""
    tokens, prefill, decode, predicted, *base = np.moveaxis(totals, -1, 0)
    seconds = prefill + decode * ratio(np.stack([tokens, predicted], axis=-1))
    return paired_ratio(np.stack([tokens, seconds, *base], axis=-1))


# Predicted figures follow from the acceptance probabilities that the rule recorded (see
# ``theory.table``). Each should agree with the measured figure of the same name, and
# expected_acceptance with conditional_acceptance_rate: both are over the positions judged.
METRICS = (
    # The unit of quality is the task's metric.
    Metric(
        QUALITY, "", lambda cell, _: score_interval(cell, QUALITY, cell["quality_metric"].iloc[0])
    ),
    Metric(ACCEPTANCE, "fraction", _pooled("accepted", "proposed")),
    Metric("draft_acceptance_rate_sample_mean", "fraction", _mean("draft_acceptance_rate")),
    Metric("acceptance_length", "tokens/round", _pooled("emitted", "rounds")),
    Metric("acceptance_length_sample_mean", "tokens/round", _mean("acceptance_length")),
    Metric("conditional_acceptance_rate", "fraction", _pooled("accepted", "judged")),
    Metric("expected_acceptance", "fraction", _pooled("expected", "judged")),
    Metric("predicted_acceptance_length", "tokens/round", _pooled("predicted_emitted", "rounds")),
    Metric("mean_weight", "fraction", _pooled("weights", "judged")),
    Metric("seconds_per_sample", "s", _mean("seconds")),
    Metric("tokens_per_second", "tokens/s", _pooled("output_tokens", "seconds")),
    Metric("tokens_per_second_sample_mean", "tokens/s", _mean("tokens_per_second")),
    Metric(SPEEDUP, "x", _over_baseline(["output_tokens", "seconds"], paired_ratio)),
    Metric(  # at the measured time of a round
        "predicted_speedup",
        "x",
        _over_baseline(
            ["output_tokens", "prefill_seconds", "decode_seconds", "predicted_emitted"],
            _at_predicted_length,
        ),
    ),
    Metric("prefill_seconds", "s", _mean("prefill_seconds")),
    Metric("round_seconds", "s/round", _pooled("decode_seconds", "rounds")),
    Metric("draft_seconds", "s/round", _pooled("draft_seconds", "rounds")),
    Metric("verify_seconds", "s/round", _pooled("verify_seconds", "rounds")),
    Metric("accept_seconds", "s/round", _pooled("accept_seconds", "rounds")),
    Metric("latency_seconds", "s", _mean("latency_seconds")),
    Metric(TOKENS, "tokens", _mean("output_tokens")),
    Metric("rounds", "rounds", _mean("rounds")),
    Metric(
        AT_LIMIT,
        "fraction",
        lambda cell, _: proportion_interval(cell["stopped_by"] == "length", cell["sample_id"]),
    ),
    Metric(REPETITION, "fraction", _mean("repetition")),
    Metric(
        COMPLETED,
        "",
        lambda cell, _: score_interval(_completed(cell), QUALITY, cell["quality_metric"].iloc[0]),
    ),
)


def summarise(samples: pd.DataFrame) -> pd.DataFrame:
    """Summarise samples: one row per cell and metric, columns ``frames.SUMMARY``.

    Samples that were timed again (column ``timing``) are only baselines. After the figures of every
    cell come the task's further metrics and, with enough repeats, pass@k. A cell consists of the
    samples that share ``frames.CELL``; ``n`` counts its prompts, over which the 95 % intervals are
    computed, or for times of a run in batches its blocks (``blocks``). Times include prefill.
    Numbers that are in no schema are the user's own metrics.

    Raises:
        UsageError: There are no samples.
    """
    if samples.empty:
        raise UsageError("There are no samples to summarise; run at least one.")
    numbers = samples.select_dtypes("number")
    user_metrics = [name for name in numbers if name not in SAMPLES and name not in MEASURED]
    terms = _with_terms(samples)
    alone = by_time_unit(terms[terms["method"] == AUTOREGRESSIVE])
    baselines = dict(list(alone.groupby(BASELINE)))
    rows: list[tuple[object, ...]] = []
    for cell, group in first_decodes(terms).groupby(list(CELL), sort=False, dropna=False):
        baseline = baselines.get(tuple(group[BASELINE].iloc[0]))
        metric, timed = group["quality_metric"].iloc[0], by_time_unit(group)
        figures = [
            (name, figure(timed if unit in _TIME_UNITS else group, baseline), unit or metric)
            for name, unit, figure in METRICS
        ]
        rows += [
            (*cell, name, *figure, unit)
            for name, figure, unit in (*figures, *_further_scores(group, user_metrics))
        ]
    return typed(pd.DataFrame(rows, columns=list(SUMMARY)), SUMMARY, "the summary")


def selected_summary(paths: Sequence[Path | str], selection: Selection) -> pd.DataFrame:
    """Return the selected rows of the summaries of runs, computed anew if tasks are split.

    Raises:
        UsageError: As ``read_summary`` and ``Selection.of`` do.
    """
    if not selection.by:
        return selection.of(read_summary(*paths))
    # Methods that are not selected may be the baseline of a speedup.
    every = replace(selection, methods=None, draft_lengths=None, drafters=None)
    parts = every.of(read_samples(*paths, timings=[TIMED_BASELINE]))
    return replace(selection, tasks=None, by=()).of(summarise(parts))


def wide(summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell, for tables and figures.

    Columns are the cell's, ``quality_metric`` (the unit of quality) and, for every metric,
    ``<metric>``, ``<metric>_low`` and ``<metric>_high``; see ``without_shared_times``.
    """
    summary = without_shared_times(summary)
    cell = summary.groupby(list(CELL), sort=False, dropna=False).ngroup()
    cells = summary.assign(cell=cell).drop_duplicates("cell").set_index("cell")[list(CELL)]
    figures = summary[["metric", "unit", "value", "ci_low", "ci_high"]].set_index(cell)
    columns: dict[str, pd.Series] = {}
    for name in (*(metric.name for metric in METRICS), *further_metrics(summary)):
        rows = figures[figures["metric"] == name]
        if name == "quality":
            columns["quality_metric"] = rows["unit"]
        for end, column in (("", "value"), ("_low", "ci_low"), ("_high", "ci_high")):
            columns[name + end] = rows[column]
    return cells.join(pd.DataFrame(columns, index=cells.index)).reset_index(drop=True)


def without_shared_times(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a summary without intervals over prompts of times of texts decoded together.

    These texts share their time, so the prompts are no independent measurements of it. Intervals
    over blocks stay: a cell has at most as many blocks as its prompts fill.
    """
    prompts = summary.groupby(list(CELL), dropna=False)["n"].transform("max")
    too_many = summary["n"] * summary["batch_size"] > prompts
    shared = (summary["batch_size"] > 1) & summary["unit"].isin(_TIME_UNITS) & too_many
    return summary.assign(**{end: summary[end].mask(shared) for end in ("ci_low", "ci_high")})


def further_metrics(summary: pd.DataFrame) -> list[str]:
    """Return the metrics that only some tasks have: further quality metrics and pass@k."""
    standard = {metric.name for metric in METRICS}
    return [name for name in summary["metric"].unique() if name not in standard]


def _with_terms(samples: pd.DataFrame) -> pd.DataFrame:
    """Add the terms of pooled figures to each sample, and number the prompts."""
    emitted = samples["acceptance_length"] * samples["rounds"]
    # Prompt lookup may judge nothing in a text.
    expected = (samples["expected_acceptance"] * samples["judged"]).mask(samples["judged"] == 0, 0)
    return samples.assign(
        sample_id=pd.factorize(samples["sample_id"], sort=True)[0],  # sorted and summed faster
        seconds=samples["prefill_seconds"] + samples["decode_seconds"],
        emitted=emitted,
        expected=expected,
        predicted_emitted=expected + emitted - samples["accepted"],
        weights=samples["mean_weight"] * samples["judged"],
    )


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


def quality_difference(own: pd.DataFrame, base: pd.DataFrame) -> Interval:
    """Return the quality of one setting minus another's on a task, paired by prompt."""
    own, base = (rows[rows["quality"].notna()] for rows in (own, base))
    ids, base_ids = own["sample_id"], base["sample_id"]
    if (own["quality_metric"] == BLEU).any():
        return paired_interval(_bleu_terms(own), ids, _bleu_terms(base), base_ids, _bleu_difference)
    return paired_difference(own["quality"], ids, base["quality"], base_ids)


def text_differences(
    own: pd.DataFrame, base: pd.DataFrame, names: Sequence[str] = OF_TEXTS
) -> dict[str, Interval]:
    """Return figures of ``OF_TEXTS`` of one setting minus another's on a task, paired by prompt.

    The quality of completed texts is compared on the prompts that both completed.
    """
    own, base = (rows.filter(_OF_SAMPLES) for rows in (own, base))  # fewer columns to copy

    def mean_difference(column: str) -> Interval:
        sides = (rows[rows[column].notna()] for rows in (own, base))
        (terms, ids), (base_terms, base_ids) = (
            (np.column_stack([rows[column], np.ones(len(rows))]), rows["sample_id"])
            for rows in sides
        )
        return paired_interval(terms, ids, base_terms, base_ids, ratio_difference)

    def at_limit() -> Interval:
        ends, base_ends = (rows["stopped_by"] == "length" for rows in (own, base))
        return paired_difference(ends, own["sample_id"], base_ends, base["sample_id"])

    figures: dict[str, Callable[[], Interval]] = {
        QUALITY: lambda: quality_difference(own, base),
        COMPLETED: lambda: quality_difference(_completed(own), _completed(base)),
        TOKENS: lambda: mean_difference("output_tokens"),
        AT_LIMIT: at_limit,
        REPETITION: lambda: mean_difference("repetition"),
    }
    return {name: figures[name]() for name in names}


def less_than_sd(samples: pd.DataFrame, names: Sequence[str] = OF_TEXTS) -> pd.DataFrame:
    """Return the ``text_differences`` between each cell that drafts and plain SD.

    SD's samples of all draft lengths and drafters are pooled: they have the same distribution. The
    columns are ``CELL`` and ``<metric>_less``, ``<metric>_less_low`` and ``<metric>_less_high``.
    """
    run = BASELINE[:-1]  # texts, unlike times, are compared across sessions
    samples = samples.filter(dict.fromkeys((*CELL, *_OF_SAMPLES)))
    samples = samples.assign(sample_id=pd.factorize(samples["sample_id"], sort=True)[0])
    strict = dict(list(samples[samples["method"] == "sd"].groupby(run)))
    relaxed = samples[~samples["method"].isin([AUTOREGRESSIVE, "sd"])]
    rows = []
    for cell, samples_of_cell in relaxed.groupby(list(CELL), sort=False, dropna=False):
        base = strict.get(tuple(samples_of_cell[run].iloc[0]))
        differences = {} if base is None else text_differences(samples_of_cell, base, names)
        ends = (differences.get(name, _NOTHING)[:3] for name in names)
        rows.append([*cell, *chain.from_iterable(ends)])
    less = [f"{name}_less{end}" for name in names for end in ("", "_low", "_high")]
    table = pd.DataFrame(rows, columns=[*CELL, *less])
    return table.astype(samples[list(CELL)].dtypes.to_dict() | dict.fromkeys(less, "float64"))


def _completed(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the samples that ended by themselves, not at the limit on new tokens."""
    return samples[samples["stopped_by"] != "length"]


def _bleu_difference(totals: Floats) -> Floats:
    difference: Floats = corpus_bleu(totals[..., :TERMS]) - corpus_bleu(totals[..., TERMS:])
    return difference


def _further_scores(
    cell: pd.DataFrame, own: Collection[str]
) -> Iterator[tuple[str, Interval, str]]:
    """Yield name, value and unit of a cell's further quality metrics."""
    for name in (*TASK_METRICS, *own):
        if name in cell and cell[name].notna().any():
            yield name, score_interval(cell, name, name), shown_name(name)
    passed = cell["quality"] if cell["quality_metric"].iloc[0] == PASS else cell.get(PASS)
    if passed is not None:
        yield from _pass_at_more(passed, cell["sample_id"])


def _pass_at_more(passed: pd.Series, prompts: pd.Series) -> Iterator[tuple[str, Interval, str]]:
    """Yield pass@2, pass@5, ... up to the number of scored repeats that every prompt has."""
    tallies = passed.dropna().groupby(prompts).agg(["count", "sum"])
    fewest = int(tallies["count"].min()) if len(tallies) else 0
    for k in sorted({*BUDGETS, fewest}):
        if 1 < k <= fewest:
            values = [pass_at_k(int(n), int(c), k) for n, c in tallies.to_numpy()]
            repeated = np.repeat(values, fewest), np.repeat(tallies.index, fewest)
            yield f"pass@{k}", proportion_interval(*repeated), f"pass@{k}"


def shown_name(name: str) -> str:
    """Return the name of a metric in tables."""
    return shown_metric(name)[0]


def shown_scale(name: str) -> float:
    """Return the factor from a score to the number shown."""
    return shown_metric(name)[1]


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
