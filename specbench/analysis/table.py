"""The main table of one's own runs, in the shape of the paper's: methods down, tasks across.

It is kept long, one row per method, task and figure; ``typeset`` lays it out for reading.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from specbench.analysis.frames import PARAMETERS
from specbench.methods.labels import method_labels
from specbench.methods.registry import METHODS
from specbench.metrics import METRICS

ACCEPTANCE, QUALITY, SPEEDUP = "draft_acceptance_rate", "quality", "speedup"
FIGURES = (ACCEPTANCE, QUALITY, SPEEDUP)
#: What stands in one table; the rest is down or across.
SECTION = ["pair", "temperature", "draft_length", "engine", "batch_size"]
METHOD = ["method", *PARAMETERS]
COLUMNS = [
    *(*SECTION, "run_id", *METHOD, "label", "task"),
    *("figure", "metric", "unit", "value", "ci_low", "ci_high", "n", "best"),
]

_UNITS = {ACCEPTANCE: "%", QUALITY: "0 to 100", SPEEDUP: "x"}
_SCALED = ["value", "ci_low", "ci_high"]


def main_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the table, columns ``COLUMNS``: a row per section, run, method, task and figure.

    Values are as shown to people: acceptance in per cent, quality times its metric's scale,
    speed-up as a factor. ``metric`` is what the figure is measured by: of quality the task's
    metric, otherwise the figure itself. Autoregressive drafts nothing, so it stands in the section
    of every draft length of its pair, temperature, engine and batch size.

    ``best`` marks, of what shares section, task and metric, the highest and all whose 95 % interval
    overlaps that of the highest. For quality all methods compete; for acceptance and speed-up those
    whose quality is so marked, for either can be had at any height for bad texts.

    Args:
        summary: Columns ``frames.SUMMARY``, of one or several runs.
    """
    rows = summary[summary["metric"].isin(FIGURES)].rename(columns={"metric": "figure"})
    is_quality = rows["figure"] == QUALITY
    metric = rows["unit"].where(is_quality, rows["figure"]).fillna("")
    scale = metric.map({name: known.scale for name, known in METRICS.items()} | {ACCEPTANCE: 100.0})
    rows = rows.assign(
        metric=metric,
        unit=rows["figure"].map(_UNITS),
        **{name: rows[name] * scale.fillna(1.0) for name in _SCALED},
    )
    table = _in_order(_in_sections(rows))
    return table.assign(label=_labels(table), best=_best(table))[COLUMNS]


def _in_sections(rows: pd.DataFrame) -> pd.DataFrame:
    """Put what was not drafted into every section that it belongs to."""
    drafted, alone = rows[rows["draft_length"] > 0], rows[rows["draft_length"] == 0]
    sections = drafted[SECTION].drop_duplicates()
    shared = [name for name in SECTION if name != "draft_length"]
    joined = alone.drop(columns="draft_length").merge(sections, on=shared, how="left")
    joined["draft_length"] = joined["draft_length"].fillna(0).astype("int64")
    return pd.concat([joined, drafted], ignore_index=True)


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Order rows by section, method and parameters, and otherwise as they came.

    Methods come in the order of the registry.
    """
    rank = {name: place for place, name in enumerate(METHODS)}
    keys = rows[["weight", "lenience", "rule", "alpha"]].assign(
        section=rows.groupby(SECTION, sort=False).ngroup(),
        method=rows["method"].map(rank).fillna(len(rank)),
    )
    order = keys.sort_values(
        ["section", "method", "weight", "lenience", "rule", "alpha"], kind="stable"
    )
    return rows.loc[order.index].reset_index(drop=True)


def _labels(table: pd.DataFrame) -> pd.Series:
    """Label methods, with heads as short as a section needs to tell them apart."""
    named = ["task", *METHOD]
    labels = pd.Series("", index=table.index)
    for _, rows in table.groupby(SECTION, sort=False):
        cell = rows.groupby(named, sort=False, dropna=False).ngroup()
        cells = rows.assign(cell=cell).drop_duplicates("cell")
        known = dict(zip(cells["cell"], method_labels(cells.to_dict("records")), strict=True))
        labels[rows.index] = cell.map(known)
    return labels


def _best(table: pd.DataFrame) -> pd.Series:
    """Tell which values are the best of their column, or not to be told from it."""
    value = table["value"]
    good = _highest(table, value.where(table["figure"] == QUALITY))
    cell = [table[name] for name in (*SECTION, "run_id", *METHOD, "task")]
    whole = good.groupby(cell, dropna=False).transform("any")
    return good | _highest(table, value.where((table["figure"] != QUALITY) & whole))


def _highest(table: pd.DataFrame, value: pd.Series) -> pd.Series:
    """Tell which of some values of the table are the highest, or have intervals that overlap it.

    A value without others in its column has nothing to be compared with.
    """
    column = [table[name] for name in (*SECTION, "task", "metric")]
    highest = value == value.groupby(column).transform("max")
    # Of several that are highest alike, the least certain speaks.
    floor = table["ci_low"].where(highest).fillna(np.inf).groupby(column).transform("min")
    among = table["value"].groupby(column).transform("count") > 1
    return among & (highest | (value.notna() & (table["ci_high"] >= floor)))
