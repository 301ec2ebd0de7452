"""The frame of cells: one row per cell, from which tables, pages, figures and the notebook draw.

Every figure has four columns: ``<figure>``, ``<figure>_low``, ``<figure>_high`` and ``<figure>_n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pandas as pd

from specbench.analysis.intervals import Interval
from specbench.analysis.scores import OF_TEXTS, QUALITY, TEXT_COLUMNS, text_differences
from specbench.analysis.summary import BASELINE, FIGURES, TIME_UNITS
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.frames import CELL
from specbench.runs.labels import method_labels

_COLUMNS = {"": "value", "_low": "ci_low", "_high": "ci_high", "_n": "n"}
_UNKNOWN = Interval(float("nan"), float("nan"), float("nan"), 0)


def cells_of(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the frame of cells of a summary.

    Columns are the cell's, its ``label``, ``quality_metric`` (the unit of quality) and, for every
    metric, its value, the ends of its interval (see ``without_shared_times``) and n.
    """
    summary = without_shared_times(summary)
    cell = summary.groupby(list(CELL), sort=False, dropna=False).ngroup()
    cells = summary.assign(cell=cell).drop_duplicates("cell").set_index("cell")[list(CELL)]
    figures = summary[["metric", "unit", *_COLUMNS.values()]].set_index(cell)
    by_metric, unmeasured = dict(list(figures.groupby("metric"))), figures.iloc[:0]
    columns = {"label": pd.Series(method_labels(cells.to_dict("records")), cells.index, dtype=str)}
    for name in dict.fromkeys((*FIGURES, *summary["metric"])):
        rows = by_metric.get(name, unmeasured)
        if name == QUALITY:
            columns["quality_metric"] = rows["unit"]
        columns |= {name + end: rows[column] for end, column in _COLUMNS.items()}
    return cells.join(pd.DataFrame(columns, index=cells.index)).reset_index(drop=True)


def with_differences(
    cells: pd.DataFrame, samples: pd.DataFrame, names: Sequence[str] = OF_TEXTS
) -> pd.DataFrame:
    """Add the differences of cells from plain SD in figures of texts, as ``<figure>_less``."""
    return cells.merge(less_than_sd(samples, names), on=list(CELL), how="left")


def without_shared_times(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a summary without intervals over prompts of times of texts decoded together.

    These texts share their time, so the prompts are no independent measurements of it. Intervals
    over blocks stay: a cell has at most as many blocks as its prompts fill.
    """
    prompts = summary.groupby(list(CELL), dropna=False)["n"].transform("max")
    too_many = summary["n"] * summary["batch_size"] > prompts
    shared = (summary["batch_size"] > 1) & summary["unit"].isin(TIME_UNITS) & too_many
    return summary.assign(**{end: summary[end].mask(shared) for end in ("ci_low", "ci_high")})


def further_metrics(cells: pd.DataFrame) -> list[str]:
    """Return the metrics that only some tasks have: further quality metrics and pass@k."""
    names = (name.removesuffix("_n") for name in cells if str(name).endswith("_n"))
    return [name for name in names if name not in FIGURES]


def less_than_sd(samples: pd.DataFrame, names: Sequence[str] = OF_TEXTS) -> pd.DataFrame:
    """Return the ``text_differences`` between each cell that drafts and plain SD.

    SD's samples of all draft lengths and drafters are pooled: they have the same distribution. The
    columns are ``CELL`` and ``<metric>_less``, ``<metric>_less_low`` and ``<metric>_less_high``.
    """
    run = BASELINE[:-1]  # texts, unlike times, are compared across sessions
    samples = samples.filter(dict.fromkeys((*CELL, *TEXT_COLUMNS)))
    samples = samples.assign(sample_id=pd.factorize(samples["sample_id"], sort=True)[0])
    strict = dict(list(samples[samples["method"] == "sd"].groupby(run)))
    relaxed = samples[~samples["method"].isin([AUTOREGRESSIVE, "sd"])]
    rows = []
    for cell, samples_of_cell in relaxed.groupby(list(CELL), sort=False, dropna=False):
        base = strict.get(tuple(samples_of_cell[run].iloc[0]))
        differences = {} if base is None else text_differences(samples_of_cell, base, names)
        ends = (differences.get(name, _UNKNOWN)[:3] for name in names)
        rows.append([*cell, *chain.from_iterable(ends)])
    less = [f"{name}_less{end}" for name in names for end in ("", "_low", "_high")]
    table = pd.DataFrame(rows, columns=[*CELL, *less])
    return table.astype(samples[list(CELL)].dtypes.to_dict() | dict.fromkeys(less, "float64"))
