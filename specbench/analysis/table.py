"""The main table of one's own runs, in the shape of the paper's: methods down, tasks across.

It is kept long, one row per method, task and figure; ``typeset`` lays it out for reading.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from specbench.analysis.best import ACCEPTANCE, QUALITY, SPEEDUP, Contest
from specbench.analysis.frames import CELL, PARAMETERS
from specbench.analysis.labels import method_labels
from specbench.methods.registry import METHODS
from specbench.metrics import METRICS

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


def main_table(summary: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the table, columns ``COLUMNS``: a row per section, run, method, task and figure.

    Values are as shown to people: acceptance in per cent, quality times its metric's scale,
    speed-up as a factor. ``metric`` is what the figure is measured by: of quality the task's
    metric, otherwise the figure itself. Autoregressive drafts nothing, so it stands in the section
    of every draft length of its pair, temperature, engine and batch size.

    ``best`` marks, of what shares section, task and metric, the highest and what the paired 95 %
    interval of the difference does not tell from it, see ``best.Contest``. For quality all methods
    compete; for acceptance and speed-up those whose quality is so marked, for either can be had at
    any height for bad texts.

    Args:
        summary: Columns ``frames.SUMMARY``, of one or several runs.
        samples: The samples of these runs, at least columns ``best.NEEDED``.
    """
    contest = Contest(samples)
    rows = summary[summary["metric"].isin(FIGURES)].rename(columns={"metric": "figure"})
    rows = rows.merge(contest.cells, on=list(CELL), how="left").fillna({"cell": -1})
    is_quality = rows["figure"] == QUALITY
    metric = rows["unit"].where(is_quality, rows["figure"]).fillna("")
    scale = metric.map({name: known.scale for name, known in METRICS.items()} | {ACCEPTANCE: 100.0})
    rows = rows.assign(
        metric=metric,
        unit=rows["figure"].map(_UNITS),
        **{name: rows[name] * scale.fillna(1.0) for name in _SCALED},
    )
    table = _in_order(_in_sections(rows))
    return table.assign(label=_labels(table), best=_best(table, contest))[COLUMNS]


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


def _best(table: pd.DataFrame, contest: Contest) -> pd.Series:
    """Tell which values are the best of their column, or not to be told from it."""
    is_quality = table["figure"] == QUALITY
    marked = _highest(table, is_quality, contest)
    cell = [table[name] for name in (*SECTION, "cell")]
    return marked | _highest(table, ~is_quality & marked.groupby(cell).transform("any"), contest)


def _highest(table: pd.DataFrame, competing: pd.Series, contest: Contest) -> pd.Series:
    """Tell which values are the best of those that compete in their column.

    A value without others in its column has nothing to be compared with.
    """
    marked = pd.Series(False, table.index)
    column = [*SECTION, "task", "figure", "metric"]
    among = table.groupby(column)["value"].transform("count") > 1
    rows = table[competing & among & table["value"].notna() & (table["cell"] >= 0)]
    for (*_, figure, metric), cells in rows.groupby(column):
        numbers, values = cells["cell"].to_numpy(np.intp), cells["value"].to_numpy()
        marked[cells.index] = contest.best(numbers, values, figure, metric)
    return marked
