"""Tables of one run: its page ``summary.md``, what the terminal shows, and the transfer matrix.

Rows are methods. On the page columns are tasks, and a sweep of static weights is shown as what it
is for: the randomised static front at the acceptance that DIVERSED reached, and how far DIVERSED
lies above it and above the next static point of less acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.frames import PARAMETERS, read_summary
from specbench.analysis.intervals import Interval
from specbench.analysis.labels import method_labels
from specbench.analysis.pareto import COARSE, Gap, gap_above_front
from specbench.analysis.summary import (
    ACCEPTANCE,
    QUALITY,
    further_metrics,
    quality_difference,
    shown_name,
    shown_scale,
    wide,
)
from specbench.errors import UsageError
from specbench.heads.registry import BUNDLED, RESULTS
from specbench.metrics import METRICS
from specbench.table import Cell, Column, Table, drop_empty, number, to_markdown, with_interval

LEARNED = "diversed"
STRICT = "sd"
NO_BASELINE = "No tokens/s over those of autoregressive, which these runs do not have."
TRANSFER = [
    *("run_id", "pair", "trained_on", "task"),
    *("metric", "value", "ci_low", "ci_high", "n", "unit"),
]

_SETTING = ["pair", "temperature", "engine", "batch_size", "draft_length"]
_Row = Mapping[Any, Any]


def summary_page(samples: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Return ``summary.md``: a table or two for each pair, temperature, engine, batch size and N.

    The second has the metrics beyond the one that stands for quality, where a task has any.
    """
    cells = _labelled(summary)
    settings = cells[cells["draft_length"] > 0][_SETTING].drop_duplicates()
    several = settings["engine"].nunique() > 1
    parts = []
    for setting in settings.to_dict("records") or cells[_SETTING].head(1).to_dict("records"):
        own = _within(cells, setting)
        tables = [_page_table(_within(samples, setting), own, setting)]
        further = _further_table(own, further_metrics(summary))
        tables += [further] if further.columns[1:] else []
        parts += [f"Engine {setting['engine']}.\n"] * several + [to_markdown(*tables)]
    return "\n".join(parts)


def run_tables(folder: Path) -> list[Table]:
    """Return two tables per task: a row per cell, in the order in which the cells ran.

    The second has the metrics beyond quality, and what else a lossy rule may change: the texts'
    length, their rounds, and how many the limit on new tokens ended.

    Raises:
        UsageError: The folder holds no readable summary.
    """
    summary = read_summary(folder)
    cells, further = _labelled(summary), further_metrics(summary)
    return [
        table
        for task, own in cells.groupby("task", sort=False)
        for table in (
            _cells_table(task, own.to_dict("records"), summary[summary["task"] == task]),
            _lengths_table(task, own.to_dict("records"), further),
        )
    ]


def transfer_data(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the transfer matrix: one row per head, task and metric, columns ``TRANSFER``.

    ``trained_on`` is the task a head was trained for; ``sd`` stands for no head.

    Raises:
        UsageError: They compare no heads by the task they were trained for, or hold several runs or
            draft lengths.
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
    return rows.assign(trained_on=trained_on)[TRANSFER].reset_index(drop=True)


def transfer_table(matrix: pd.DataFrame) -> Table:
    """Return the transfer matrix for reading: heads down, tasks across, quality over acceptance."""
    tasks = list(matrix["task"].unique())
    columns = [Column("trained on")]
    for task in tasks:
        own = matrix[matrix["task"] == task]
        metric = METRICS.get(next(iter(own.loc[own["metric"] == QUALITY, "unit"]), ""))
        name = f"{task}, {metric.unit}" if metric else task
        columns.append(Column(f"{name} (n = {own['n'].max()})"))
    rows = []
    for head, of_head in matrix.groupby("trained_on", sort=False):
        name = "no head (sd)" if head == STRICT else head
        cells = [_transfer_cell(of_head[of_head["task"] == task]) for task in tasks]
        best = [task == head for task in tasks]
        rows.append([name, *(Cell(c, best=b) for c, b in zip(cells, best, strict=True))])
    title = (
        f"Pair {matrix['pair'].iloc[0]}. Each field: quality, then accepted over drafted tokens, "
        "with their 95 % intervals; bold (or *) on the task that the head was trained for"
    )
    return Table(title, columns, rows)


def _transfer_cell(rows: pd.DataFrame) -> str:
    lines = []
    for metric, unit in ((QUALITY, ""), (ACCEPTANCE, " %")):
        for row in rows[rows["metric"] == metric].itertuples():
            value, low, high = (100 * each for each in (row.value, row.ci_low, row.ci_high))
            lines.append(with_interval(value, low, high, ".1f", unit))
    return "\n".join(filter(None, lines))


def _labelled(summary: pd.DataFrame) -> pd.DataFrame:
    cells = wide(summary)
    return cells.assign(label=method_labels(cells.to_dict("records")))


def _within(frame: pd.DataFrame, setting: _Row) -> pd.DataFrame:
    """Keep one setting's rows; autoregressive, which drafts nothing, belongs to each."""
    same = frame["draft_length"].isin([0, setting["draft_length"]])
    for name in _SETTING[:-1]:
        same &= frame[name] == setting[name]
    return frame[same]


def _page_table(samples: pd.DataFrame, cells: pd.DataFrame, setting: _Row) -> Table:
    tasks = list(cells["task"].unique())
    named = zip(cells["task"], cells["quality_metric"], strict=True)
    metrics = {task: METRICS.get(metric) for task, metric in named}
    scales = {task: metric.scale if metric else 1.0 for task, metric in metrics.items()}
    learned = cells[cells["method"] == LEARNED]
    gaps = {
        label: {row["task"]: _gap(samples, row["task"], row["head"]) for _, row in rows.iterrows()}
        for label, rows in learned.groupby("label", sort=False)
    }
    swept = all(any(known.get(task) for known in gaps.values()) for task in tasks)
    rows: list[list[str | Cell]] = []
    for label, of_label in cells.groupby("label", sort=False):
        if not (swept and of_label["method"].iloc[0] == "static"):
            known = {cell["task"]: cell for cell in of_label.to_dict("records")}
            fields = [_field(samples, known.get(task), scales[task]) for task in tasks]
            rows.append([label, *fields])
    for label, found in gaps.items() if swept else ():
        at = [(found.get(task), scales[task]) for task in tasks]
        front = [f"{g.front * scale:.1f}\n{g.acceptance:.0%}" if g else "" for g, scale in at]
        above = [Cell(_distance(g.above, scale) if g else "", best=True) for g, scale in at]
        measured = [f"{_distance(g.above_measured, s)}\n{_named(g)}" if g else "" for g, s in at]
        rows += [
            [f"static front (randomised) at the acceptance of {label}", *front],
            [Cell(f"{label} above the static front (randomised)", best=True), *above],
            [f"{label} above its next measured point", *measured],
        ]
    title = (
        f"Pair {setting['pair']}, T = {setting['temperature']:g}, N = {setting['draft_length']}, "
        f"{_prompts(samples)} per task. Each field: quality with its 95 % interval, its difference "
        "from sd, paired by prompt, accepted over drafted tokens, and tokens/s over those of "
        "autoregressive"
    )
    headings = [f"{task}, {metric.unit}" if metric else task for task, metric in metrics.items()]
    columns = [Column("method"), *(Column(heading, align="left") for heading in headings)]
    return Table(title, columns, rows)


def _field(samples: pd.DataFrame, cell: _Row | None, scale: float) -> str:
    if cell is None:
        return ""
    accepted, speedup = number(cell[ACCEPTANCE], ".0%"), number(cell["speedup"], ".2f")
    paid = ", ".join(filter(None, [accepted, speedup and f"{speedup}×"]))
    less = _less_than_sd(samples, cell, scale)
    return "\n".join(filter(None, [_figure(cell, QUALITY, scale), less, paid]))


def _less_than_sd(samples: pd.DataFrame, cell: _Row, scale: float) -> str:
    """The paired difference in quality of a method that drafts from plain SD."""
    of_task = samples[samples["task"] == cell["task"]]
    sd = of_task[of_task["method"] == STRICT]
    if cell["draft_length"] == 0 or cell["method"] == STRICT or sd["quality"].isna().all():
        return ""
    same = of_task["method"] == cell["method"]
    for name in PARAMETERS:
        same &= of_task[name].isna() if pd.isna(cell[name]) else of_task[name] == cell[name]
    return _distance(quality_difference(of_task[same], sd), scale)


def _gap(samples: pd.DataFrame, task: str, head: str) -> Gap | None:
    """The distance above the front with one head, where the run has both."""
    one = samples[(samples["method"] != LEARNED) | (samples["head"] == head)]
    try:
        return gap_above_front(one, task=task, method=LEARNED)
    except UsageError:
        return None


def _distance(found: Interval, scale: float) -> str:
    value, low, high = (scale * each for each in found[:3])
    interval = "" if pd.isna(low) else f" [{low:.1f}, {high:.1f}]"
    return f"{value:+.1f}{interval}"


def _named(gap: Gap) -> str:
    """The static point of less acceptance, and a warning where the next is far below it."""
    below, above = (name or "none" for name in gap.between)
    coarse = f", coarse: {above} is {100 * abs(gap.step):.0f} points away"
    return below + coarse * (abs(gap.step) > COARSE)


def _prompts(samples: pd.DataFrame) -> str:
    counts = samples.groupby("task")["sample_id"].nunique()
    fewest, most = counts.min(), counts.max()
    scored = samples[samples["quality"].notna()].groupby("task")["sample_id"].nunique().min()
    partly = f" (quality of {scored} of them)" if scored < fewest else ""
    return (f"{most} prompts" if fewest == most else f"{fewest} to {most} prompts") + partly


def _further_table(cells: pd.DataFrame, metrics: list[str]) -> Table:
    """The metrics beyond quality: a column for each that a task has."""
    columns, shown = [Column("method")], [list(cells["label"].unique())]
    for task, rows in cells.groupby("task", sort=False):
        found = {cell["label"]: cell for cell in rows.to_dict("records")}
        for name in metrics:
            scale = shown_scale(name)
            columns.append(Column(f"{task}, {shown_name(name)}", align="left"))
            shown.append([_figure(found.get(label), name, scale) for label in shown[0]])
    rows = list(zip(*shown, strict=True))
    return drop_empty(Table("Further metrics, with their 95 % intervals", columns, rows))


def _figure(cell: _Row | None, name: str, scale: float) -> str:
    if cell is None:
        return ""
    value, low, high = (scale * cell[name + end] for end in ("", "_low", "_high"))
    return with_interval(value, low, high, ".1f")


def _cells_table(task: str, cells: list[dict[Any, Any]], summary: pd.DataFrame) -> Table:
    counts = summary.groupby("metric")["n"].max()
    n, scored = counts.max(), counts.get(QUALITY, counts.max())
    partly = f", quality of {scored} of them" if scored < n else ""
    metric = METRICS.get(cells[0]["quality_metric"])
    headings = ["method", "N", f"{metric.unit if metric else QUALITY}\n[95 %]"]
    headings += ["accepted /\ndrafted", "tokens /\nround", "tokens/s", "tokens/s\n/ AR's"]
    rows = [
        [
            *_name(cell),
            _figure(cell, QUALITY, metric.scale if metric else 1.0),
            number(cell[ACCEPTANCE], ".1%"),
            number(cell["acceptance_length"], ".2f"),
            number(
                cell["tokens_per_second"], ".3g" if cell["tokens_per_second"] < 99.95 else ".0f"
            ),
            number(cell["speedup"], ".2f"),
        ]
        for cell in cells
    ]
    notes = [] if any(row[-1] for row in rows) else [NO_BASELINE]
    title = f"{task} on {cells[0]['pair']}, n = {n}{partly}"
    return drop_empty(Table(title, list(map(Column, headings)), rows, notes, stub=2))


def _lengths_table(task: str, cells: list[dict[Any, Any]], metrics: list[str]) -> Table:
    lengths = {
        "output_tokens": ("tokens", ".1f"),
        "rounds": ("rounds", ".1f"),
        "length_limit_rate": ("ended by limit", ".1%"),
    }
    scores = [Column(f"{shown_name(name)} [95 %]") for name in metrics]
    columns = [Column("method"), Column("N"), *scores]
    columns += [Column(heading) for heading, _ in lengths.values()]
    rows = [
        [
            *_name(cell),
            *(_figure(cell, name, shown_scale(name)) for name in metrics),
            *(number(cell[name], form) for name, (_, form) in lengths.items()),
        ]
        for cell in cells
    ]
    return drop_empty(Table(f"{task}: further metrics", columns, rows, stub=2))


def _name(cell: _Row) -> list[str]:
    return [cell["label"], str(cell["draft_length"] or "")]
