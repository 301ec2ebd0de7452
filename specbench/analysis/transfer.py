"""The transfer table: every head on every task, after the paper's.

A head's name in the column ``head`` is the task it was trained for; ``sd`` stands for no head.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from specbench.analysis.digest import LEARNED
from specbench.errors import UsageError
from specbench.metrics import METRICS

STRICT = "sd"
SUMMARISED = ("metric", "value", "ci_low", "ci_high", "n", "unit")
SHOWN = ("draft_acceptance_rate", "quality")
COLUMNS = [
    "run_id",
    "pair",
    "trained_on",
    "task",
    "metric",
    "value",
    "ci_low",
    "ci_high",
    "n",
    "unit",
]


def transfer_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the tidy matrix: one row per head, task and metric, columns ``COLUMNS``.

    Args:
        summary: A tidy summary of a run of ``specbench transfer``.

    Raises:
        UsageError: The run compares no heads.
    """
    rows = summary[summary["method"].isin([LEARNED, STRICT]) & summary["metric"].isin(SHOWN)]
    trained_on = rows["head"].where(rows["method"] == LEARNED, STRICT)
    table = rows.assign(trained_on=trained_on)[COLUMNS].reset_index(drop=True)
    if table["trained_on"].nunique() < 2:
        raise UsageError("These runs compare no heads: start with `specbench transfer`.")
    return table


def transfer_markdown(table: pd.DataFrame) -> str:
    """Return the matrix as Markdown: heads down, tasks across, quality over acceptance."""
    tasks = list(dict.fromkeys(table["task"]))
    units = table[table["metric"] == "quality"].drop_duplicates("task").set_index("task")["unit"]
    headings = [f"{t}, {METRICS[units[t]].unit}" if units.get(t) in METRICS else t for t in tasks]
    lines = ["| trained on | " + " | ".join(headings) + " |", "|---" * (1 + len(tasks)) + "|"]
    for head in dict.fromkeys(table["trained_on"]):
        fields = [_field(table, head, task, units.get(task)) for task in tasks]
        name = "no head (sd)" if head == STRICT else head
        lines.append(f"| {name} | " + " | ".join(fields) + " |")
    return "\n".join(lines) + "\n"


def _field(table: pd.DataFrame, head: str, task: str, unit: Any) -> str:
    """Quality and acceptance of one head on one task, each with its interval."""
    cell = table[(table["trained_on"] == head) & (table["task"] == task)].set_index("metric")
    parts = []
    for metric in ("quality", "draft_acceptance_rate"):
        scale = METRICS[unit].scale if metric == "quality" and unit in METRICS else 100
        if metric in cell.index and pd.notna(cell.loc[metric, "value"]):
            value, low, high = (scale * cell.loc[metric, c] for c in ("value", "ci_low", "ci_high"))
            percent = "" if metric == "quality" else " %"
            parts.append(f"{value:.1f}{percent} [{low:.1f}, {high:.1f}]")
    shown = "<br>".join(parts)
    return f"**{shown}**" if head == task else shown
