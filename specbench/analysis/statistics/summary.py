"""Summarise samples as a tidy table: one row per cell and metric, or one row per cell.

There are two kinds of means: a *pooled* figure is a ratio of sums over all samples of a cell, in
which long outputs weigh more; a *sample mean* averages one figure per sample.

In the frame of cells, from which tables, pages, figures and the notebook draw, every figure has
four columns: ``<figure>``, ``<figure>_low``, ``<figure>_high`` and ``<figure>_n``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.statistics import estimates, intervals
from specbench.analysis.statistics.blocks import by_time_unit
from specbench.analysis.statistics.estimates import (
    AT_LIMIT,
    COMPLETED,
    OF_TEXTS,
    QUALITY,
    REPETITION,
    SECONDS,
    SPEED,
    TEXT_COLUMNS,
    TOKENS,
)
from specbench.analysis.statistics.intervals import Floats, Interval, mean_interval, ratio_interval
from specbench.analysis.statistics.points import TARGET
from specbench.analysis.statistics.proportions import proportion_interval
from specbench.analysis.tables.shown import shown
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs import frames
from specbench.runs.frames import CELL, first_decodes, rows_of
from specbench.runs.labels import method_labels
from specbench.runs.tables import dictionary
from specbench.tasks.metrics import METRICS
from specbench.tasks.metrics.code import BUDGETS, pass_at_k

ACCEPTANCE, SPEEDUP, PASS = "draft_acceptance_rate", "speedup", "pass@1"
#: Columns that a cell shares with its baseline, ``autoregressive``.
BASELINE = ["run_id", "pair", "task", "temperature", "engine", "batch_size", "session"]
TIME_UNITS = ("s", "s/round", "tokens/s", "x")
_UNITS = {column.name: column.unit for column in dictionary() if "metrics" in column.tables}
_SHOWN_COLUMNS = {column.name: column.unit for column in dictionary() if column.heading}
#: Counts of a text, and what is derived from them.
_COUNTS = {"rounds": ["acceptance_length"], "proposed": ["draft_acceptance_rate"], "judged": []}
_ENDS = {"": "value", "_low": "ci_low", "_high": "ci_high", "_n": "n"}

#: Maps the samples of a cell, and those of its baseline if any, to a figure.
Figure = Callable[[pd.DataFrame, pd.DataFrame | None], Interval]


def _mean(column: str) -> Figure:
    return lambda cell, _: mean_interval(cell[column], cell["sample_id"])


def _pooled(numerator: str, denominator: str) -> Figure:
    return lambda cell, _: ratio_interval(cell[numerator], cell[denominator], cell["sample_id"])


def _speedup(cell: pd.DataFrame, baseline: pd.DataFrame | None) -> Interval:
    """Return the tokens per second over those of the baseline; unknown without both."""
    figure = intervals.UNKNOWN if baseline is None else estimates.contrast(cell, baseline, SPEED)
    return figure if figure.value == figure.value else intervals.UNKNOWN


def _predicted_speedup(cell: pd.DataFrame, baseline: pd.DataFrame | None) -> Interval:
    """Return the speed-up at the measured time of a round; unknown without both."""
    columns = [TOKENS, "prefill_seconds", "decode_seconds", "predicted_emitted"]
    terms = cell[columns].to_numpy(np.float64)
    if baseline is None or np.isnan(terms).any():
        return intervals.UNKNOWN
    base = baseline[[TOKENS, "seconds"]].to_numpy(np.float64)
    sides = (terms, cell["sample_id"]), (base, baseline["sample_id"])

    def at_predicted_length(totals: Floats) -> Floats:  # [..., 6]
        tokens, prefill, decode, predicted, *of_base = np.moveaxis(totals, -1, 0)
        seconds = prefill + decode * intervals.ratio(np.stack([tokens, predicted], axis=-1))
        return intervals.paired_ratio(np.stack([tokens, seconds, *of_base], axis=-1))

    return intervals.paired_interval(*sides, at_predicted_length, log=True)


# Predicted figures follow from the acceptance probabilities that the rule recorded before each
# draft was drawn, so predictions minus measurements are a martingale. Each should agree with the
# measured figure of its name, and expected_acceptance with conditional_acceptance_rate: both are
# over the positions judged.
FIGURES: dict[str, Figure] = {
    QUALITY: lambda cell, _: estimates.score_interval(
        cell, QUALITY, cell["quality_metric"].iloc[0]
    ),
    ACCEPTANCE: _pooled("accepted", "proposed"),
    "draft_acceptance_rate_sample_mean": _mean("draft_acceptance_rate"),
    "acceptance_length": _pooled("emitted", "rounds"),
    "acceptance_length_sample_mean": _mean("acceptance_length"),
    "conditional_acceptance_rate": _pooled("accepted", "judged"),
    "expected_acceptance": _pooled("expected", "judged"),
    "predicted_acceptance_length": _pooled("predicted_emitted", "rounds"),
    "mean_weight": _pooled("weights", "judged"),
    "seconds_per_sample": _mean("seconds"),
    "tokens_per_second": _pooled("output_tokens", "seconds"),
    "tokens_per_second_sample_mean": _mean("tokens_per_second"),
    SPEEDUP: _speedup,
    "predicted_speedup": _predicted_speedup,
    "prefill_seconds": _mean("prefill_seconds"),
    "round_seconds": _pooled("decode_seconds", "rounds"),
    "draft_seconds": _pooled("draft_seconds", "rounds"),
    "verify_seconds": _pooled("verify_seconds", "rounds"),
    "accept_seconds": _pooled("accept_seconds", "rounds"),
    "latency_seconds": _mean("latency_seconds"),
    TOKENS: _mean("output_tokens"),
    "rounds": _mean("rounds"),
    AT_LIMIT: lambda cell, _: proportion_interval(  # of texts whose end is known
        cell["stopped_by"].dropna() == "length", cell.loc[cell["stopped_by"].notna(), "sample_id"]
    ),
    REPETITION: _mean("repetition"),
    COMPLETED: lambda cell, _: estimates.score_interval(
        estimates.completed(cell), QUALITY, cell["quality_metric"].iloc[0]
    ),
}


def baseline_of(cell: Mapping[str, Any] | pd.Series) -> tuple[Any, ...]:
    """Return the values of ``BASELINE`` of a cell, None for a blank."""
    values = (cell[name] for name in BASELINE)
    return tuple(value if value == value else None for value in values)


def summarise(samples: pd.DataFrame) -> pd.DataFrame:
    """Summarise samples: one row per cell and metric, columns ``frames.SUMMARY``.

    Samples that were timed again (column ``timing``) are only baselines. After the figures of every
    cell come the task's further metrics and, with enough repeats, pass@k. A cell consists of the
    samples that share ``frames.CELL``; ``n`` counts its prompts, over which the 95 % intervals are
    computed, or for times of a run in batches its blocks (see ``points``). Times include prefill.
    Numbers that are in no schema are the user's own metrics.
    """
    if samples.empty:
        raise UsageError("there are no samples to summarise: run at least one")
    numbers = samples.select_dtypes("number")
    declared = {*frames.SAMPLES, *frames.MEASURED}
    user_metrics = [name for name in numbers if name not in declared]
    terms = _with_terms(samples)
    alone = by_time_unit(terms[terms["method"] == AUTOREGRESSIVE])
    groups = alone.groupby(BASELINE, dropna=False)
    baselines = {baseline_of(rows.iloc[0]): rows for _, rows in groups}
    units = [_UNITS[name] for name in FIGURES]  # that of quality is the task's metric
    rows: list[tuple[object, ...]] = []
    for cell, group in first_decodes(terms).groupby(list(CELL), sort=False, dropna=False):
        baseline = baselines.get(baseline_of(group.iloc[0]))
        group = _reported_by_all(group)
        metric, timed = group["quality_metric"].iloc[0], by_time_unit(group)
        figures = [
            (name, figure(timed if unit in TIME_UNITS else group, baseline), unit or metric)
            for (name, figure), unit in zip(FIGURES.items(), units, strict=True)
        ]
        figures += _further_figures(group, user_metrics)
        rows += [(*cell, name, *figure[:4], unit) for name, figure, unit in figures]
    table = pd.DataFrame(rows, columns=list(frames.SUMMARY))
    return frames.typed(table, frames.SUMMARY, "the summary")


def _with_terms(samples: pd.DataFrame) -> pd.DataFrame:
    """Add the terms of pooled figures to each sample, and number the prompts."""
    emitted = samples["acceptance_length"] * samples["rounds"]
    # Prompt lookup may judge nothing in a text.
    expected = (samples["expected_acceptance"] * samples["judged"]).mask(samples["judged"] == 0, 0)
    return samples.assign(
        sample_id=pd.factorize(samples["sample_id"], sort=True)[0],  # sorted and summed faster
        seconds=estimates.term(samples, SECONDS),
        emitted=emitted,
        expected=expected,
        predicted_emitted=expected + emitted - samples["accepted"],
        weights=samples["mean_weight"] * samples["judged"],
    )


def _reported_by_all(cell: pd.DataFrame) -> pd.DataFrame:
    """Blank the counts that a server reports of some texts only.

    vLLM reports none of texts that end at a stop string. Those that end at the limit are others,
    and not a sample of all. A text of one token has no round.
    """
    counted = cell[cell["output_tokens"] > 1]
    partial = [
        name
        for count, names in _COUNTS.items()
        if counted[count].isna().any()
        for name in (count, *names)
    ]
    return cell.assign(**dict.fromkeys(partial, np.nan)) if partial else cell


def _further_figures(
    cell: pd.DataFrame, user_metrics: Collection[str]
) -> Iterator[tuple[str, Interval, str]]:
    """Yield name, value and unit of a cell's further metrics, and of figures that few runs have."""
    for name in (*METRICS, *user_metrics):
        if name in cell and cell[name].notna().any():
            yield name, estimates.score_interval(cell, name, name), shown(name).heading
    passed = cell["quality"] if cell["quality_metric"].iloc[0] == PASS else cell.get(PASS)
    if passed is not None:  # pass@2, pass@5, ... up to the scored repeats that every prompt has
        keys = [frames.example_ids(cell), cell["sample_id"]]  # several examples may have one prompt
        tallies = passed.dropna().groupby(keys).agg(["count", "sum"])
        fewest = int(tallies["count"].min()) if len(tallies) else 0
        for k in sorted({*BUDGETS, fewest}):
            if 1 < k <= fewest:
                values = [pass_at_k(int(n), int(c), k) for n, c in tallies.to_numpy()]
                prompts = tallies.index.get_level_values(-1)
                repeated = np.repeat(values, fewest), np.repeat(prompts, fewest)
                yield f"pass@{k}", proportion_interval(*repeated), f"pass@{k}"
    for name, parts in estimates.share_terms(cell).items():
        yield name, ratio_interval(*parts, cell["sample_id"]), "fraction"
    for name, unit in _SHOWN_COLUMNS.items():
        if name in cell and cell[name].notna().any():
            yield name, mean_interval(cell[name].fillna(0), cell["sample_id"]), unit


def cells_of(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of cells of a summary.

    Columns are the cell's, its ``label``, ``quality_metric`` (the unit of quality) and, for every
    metric, its value, the ends of its interval (see ``without_shared_times``) and n.
    """
    summary = without_shared_times(summary)
    cell = summary.groupby(list(CELL), sort=False, dropna=False).ngroup()
    cells = summary.assign(cell=cell).drop_duplicates("cell").set_index("cell")[list(CELL)]
    figures = summary[["metric", "unit", *_ENDS.values()]].set_index(cell)
    by_metric, unmeasured = dict(list(figures.groupby("metric"))), figures.iloc[:0]
    columns = {"label": pd.Series(method_labels(rows_of(cells)), cells.index, dtype=str)}
    for name in dict.fromkeys((*FIGURES, *summary["metric"])):
        rows = by_metric.get(name, unmeasured)
        if name == QUALITY:
            columns["quality_metric"] = rows["unit"]
        columns |= {name + end: rows[column] for end, column in _ENDS.items()}
    return cells.join(pd.DataFrame(columns, index=cells.index)).reset_index(drop=True)


def without_shared_times(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a summary without intervals over prompts of times of texts decoded together.

    These texts share their time, so the prompts are no independent measurements of it. Intervals
    over blocks stay: they have n of at most half the prompts, or somewhat more if examples share
    a prompt.
    """
    prompts = summary.groupby(list(CELL), dropna=False)["n"].transform("max")
    too_many = summary["n"] * summary["batch_size"] > 1.5 * prompts
    shared = (summary["batch_size"] > 1) & summary["unit"].isin(TIME_UNITS) & too_many
    return summary.assign(**{end: summary[end].mask(shared) for end in ("ci_low", "ci_high")})


def prompt_counts(cells: pd.DataFrame) -> pd.Series:
    """Return the number of prompts of each cell; n of times may count blocks of them."""
    return cells.filter(regex="_n$").max(axis=1)


def further_metrics(cells: pd.DataFrame) -> list[str]:
    """Return the metrics that only some tasks have: further quality metrics and pass@k."""
    names = (name.removesuffix("_n") for name in cells if str(name).endswith("_n"))
    return [name for name in names if name not in FIGURES]


def less_than_sd(samples: pd.DataFrame, names: Collection[str] = OF_TEXTS) -> pd.DataFrame:
    """Return the contrasts of texts of each cell that drafts with plain SD.

    The samples of ``TARGET`` at all draft lengths and drafters are pooled: they have the same
    distribution. The columns are ``CELL`` and ``<metric>_less``, ``<metric>_less_low`` and
    ``<metric>_less_high``.
    """
    run = BASELINE[:-1]  # texts, unlike times, are compared across sessions
    samples = samples.filter(dict.fromkeys((*CELL, *TEXT_COLUMNS)))
    samples = samples.assign(sample_id=pd.factorize(samples["sample_id"], sort=True)[0])
    groups = samples[samples["method"].isin(TARGET)].groupby(run)
    strict = {key: rows for key, rows in groups if (rows["method"] == "sd").any()}
    relaxed = samples[~samples["method"].isin(TARGET)]
    unknown = {f"{name}_less": intervals.UNKNOWN for name in names}
    rows = []
    for cell, of_cell in relaxed.groupby(list(CELL), sort=False, dropna=False):
        base = strict.get(tuple(of_cell[run].iloc[0]))
        figures = unknown
        if base is not None:
            figures = {f"{n}_less": estimates.contrast(of_cell, base, OF_TEXTS[n]) for n in names}
        rows.append(dict(zip(CELL, cell, strict=True)) | estimates.wide(figures))
    less = [*estimates.wide(unknown)]
    table = pd.DataFrame(rows, columns=[*CELL, *less])
    return table.astype(samples[list(CELL)].dtypes.to_dict() | dict.fromkeys(less, "float64"))
