"""The transfer table: every head on every task, after the paper's.

A head's name in the column ``head`` is the task it was trained for; ``sd`` stands for no head.
"""

from __future__ import annotations

import pandas as pd

from specbench.analysis.digest import LEARNED
from specbench.errors import UsageError
from specbench.heads.registry import BUNDLED, RESULTS
from specbench.metrics import METRICS

STRICT = "sd"
ACCEPTANCE, QUALITY = "draft_acceptance_rate", "quality"
COLUMNS = [
    *("run_id", "pair", "trained_on", "task"),
    *("metric", "value", "ci_low", "ci_high", "n", "unit"),
]
SUMMARISED = ["value", "ci_low", "ci_high"]


def transfer_table(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the tidy matrix: one row per head, task and metric, columns ``COLUMNS``.

    Args:
        summary: A tidy summary of a run of ``specbench transfer``.

    Raises:
        UsageError: It compares no heads by the task they were trained for, or holds several runs
            or draft lengths.
    """
    rows = summary[summary["method"].isin([LEARNED, STRICT])]
    rows = rows[rows["metric"].isin([ACCEPTANCE, QUALITY])]
    heads = rows.loc[rows["method"] == LEARNED, "head"]
    if heads.empty or heads.isin([BUNDLED, RESULTS]).any():
        raise UsageError("these runs compare no heads: start with `specbench transfer`")
    for name, what in (("run_id", "run"), ("draft_length", "draft length")):
        if rows[name].nunique() > 1:
            raise UsageError(f"a transfer table is of one {what}: give one at a time")
    trained_on = rows["head"].where(rows["method"] == LEARNED, STRICT)
    return rows.assign(trained_on=trained_on)[COLUMNS].reset_index(drop=True)


def transfer_markdown(table: pd.DataFrame) -> str:
    """Return the matrix as Markdown: heads down, tasks across, quality over acceptance."""
    columns = headings(table).values()
    lines = [
        f"Pair {table['pair'].iloc[0]}. Each field: quality, then accepted over drafted "
        "tokens, with their 95 % intervals; bold on the task that the head was trained for.",
        "",
        f"| trained on | {' | '.join(columns)} |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for head, row in fields(table).items():
        shown = {task: "<br>".join(parts) for task, parts in row.items()}
        if shown.get(head):
            shown[head] = f"**{shown[head]}**"
        lines.append(f"| {shown_head(head)} | {' | '.join(shown.values())} |")
    return "\n".join(lines) + "\n"


def headings(table: pd.DataFrame) -> dict[str, str]:
    """Return what stands above each task: its name, unit of quality and number of prompts."""
    prompts = table.groupby("task", sort=False)["n"].max()
    units = table[table["metric"] == QUALITY].set_index("task")["unit"].to_dict()
    known = {task: METRICS[unit].unit for task, unit in units.items() if unit in METRICS}
    return {
        task: ", ".join(filter(None, [task, known.get(task)])) + f" (n = {n})"
        for task, n in prompts.items()
    }


def fields(table: pd.DataFrame) -> dict[str, dict[str, list[str]]]:
    """Return, by head and task, quality and acceptance with their intervals, a line each."""
    cells = dict(list(table.groupby(["trained_on", "task"], sort=False)))
    return {
        head: {
            task: _lines(cells[head, task]) if (head, task) in cells else []
            for task in table["task"].unique()
        }
        for head in table["trained_on"].unique()
    }


def shown_head(head: str) -> str:
    """Return what a row is called."""
    return "no head (sd)" if head == STRICT else head


def _lines(cell: pd.DataFrame) -> list[str]:
    found = cell.dropna(subset="value").set_index("metric")
    lines = []
    for metric, form in ((QUALITY, "{:.1f}"), (ACCEPTANCE, "{:.1f} %")):
        if metric in found.index:
            value, low, high = (100 * found.loc[metric, name] for name in SUMMARISED)
            interval = "" if pd.isna(low) else f" [{low:.1f}, {high:.1f}]"
            lines.append(form.format(value) + interval)
    return lines
