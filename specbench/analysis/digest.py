"""The run on one page: a Markdown table in the shape of the paper's main table.

Rows are methods, columns tasks. A sweep of static weights is shown as what it is for: the
randomised static front at the acceptance that DIVERSED reached, and how far DIVERSED lies above it
and above the next static point of less acceptance. Metrics beyond the one that stands for quality
have a table of their own below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from specbench.analysis.frames import PARAMETERS
from specbench.analysis.intervals import Interval
from specbench.analysis.labels import method_labels
from specbench.analysis.pareto import COARSE, Gap, gap_above_front
from specbench.analysis.scores import quality_difference, shown_name, shown_scale
from specbench.analysis.summary import further_metrics, wide
from specbench.errors import UsageError
from specbench.metrics import METRICS

LEARNED = "diversed"
_SETTING = ["pair", "temperature", "engine", "batch_size", "draft_length"]


def digest(samples: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Return Markdown: a table or two for each pair, temperature, engine, batch size and N.

    Args:
        samples: Samples of a run.
        summary: Their summary.
    """
    cells = wide(summary)
    cells["label"] = method_labels(cells.to_dict("records"))
    further = further_metrics(summary)
    settings = cells[cells["draft_length"] > 0][_SETTING].drop_duplicates()
    several = settings["engine"].nunique() > 1
    parts: list[str] = []
    for setting in settings.to_dict("records") or cells[_SETTING].head(1).to_dict("records"):
        mine = _within(cells, setting)
        parts += [f"Engine {setting['engine']}.", ""] if several else []
        parts += _table(_within(samples, setting), mine, setting)
        parts += _further(mine, further)
    return "\n".join(parts) + "\n"


def _within(frame: pd.DataFrame, setting: dict[Any, Any]) -> pd.DataFrame:
    """Keep one setting's rows; autoregressive, which drafts nothing, belongs to each."""
    same = frame["draft_length"].isin([0, setting["draft_length"]])
    for name in _SETTING[:-1]:
        same &= frame[name] == setting[name]
    return frame[same]


def _table(samples: pd.DataFrame, cells: pd.DataFrame, setting: dict[Any, Any]) -> Iterator[str]:
    tasks = list(dict.fromkeys(cells["task"]))
    scales = {task: _scale(cells, task) for task in tasks}
    learned = cells[cells["method"] == LEARNED]
    gaps = {
        label: {row["task"]: _gap(samples, row["task"], row["head"]) for _, row in rows.iterrows()}
        for label, rows in learned.groupby("label", sort=False)
    }
    swept = all(any(known.get(task) for known in gaps.values()) for task in tasks)
    yield (
        f"Pair {setting['pair']}, T = {setting['temperature']:g}, N = {setting['draft_length']}, "
        f"{_prompts(samples)} per task. Each field: quality with its 95 % interval, its difference "
        "from sd, paired by prompt, accepted over drafted tokens, and tokens/s over those of "
        "autoregressive."
    )
    yield ""
    yield "| method | " + " | ".join(_heading(cells, task) for task in tasks) + " |"
    yield "|---" * (1 + len(tasks)) + "|"
    for label in dict.fromkeys(cells["label"]):
        rows = cells[cells["label"] == label].set_index("task")
        if swept and rows["method"].iloc[0] == "static":
            continue
        fields = [
            _field(rows.loc[t], scales[t], _less_than_sd(samples, cells, rows.loc[t]))
            if t in rows.index
            else ""
            for t in tasks
        ]
        yield f"| {label} | " + " | ".join(fields) + " |"
    for label, known in gaps.items() if swept else ():
        level = [
            f"{g.front * scales[t]:.1f}<br>{g.acceptance:.0%}" if (g := known.get(t)) else ""
            for t in tasks
        ]
        yield f"| static front (randomised) at the acceptance of {label} | {' | '.join(level)} |"
        above = [
            f"**{_distance(g.above, scales[t])}**" if (g := known.get(t)) else "" for t in tasks
        ]
        yield f"| **{label} above the static front (randomised)** | {' | '.join(above)} |"
        measured = [
            f"{_distance(g.above_measured, scales[t])}<br>{_named(g)}"
            if (g := known.get(t))
            else ""
            for t in tasks
        ]
        yield f"| {label} above its next measured point | {' | '.join(measured)} |"
    yield ""


def _further(cells: pd.DataFrame, metrics: Sequence[str]) -> Iterator[str]:
    """The metrics beyond quality: a column for each that a task has."""
    known = {
        (task, name): rows.set_index("label")
        for task, rows in cells.groupby("task", sort=False)
        for name in metrics
        if rows[name].notna().any()
    }
    if not known:
        return
    yield "Further metrics, with their 95 % intervals."
    yield ""
    headings = [f"{task}, {shown_name(name)}" for task, name in known]
    yield "| method | " + " | ".join(headings) + " |"
    yield "|---" * (1 + len(known)) + "|"
    for label in dict.fromkeys(cells["label"]):
        fields = [
            _figure(rows.loc[label], name, shown_scale(name)) if label in rows.index else ""
            for (_, name), rows in known.items()
        ]
        yield f"| {label} | " + " | ".join(fields) + " |"
    yield ""


def _prompts(samples: pd.DataFrame) -> str:
    counts = samples.groupby("task")["sample_id"].nunique()
    fewest, most = counts.min(), counts.max()
    scored = samples[samples["quality"].notna()].groupby("task")["sample_id"].nunique().min()
    partly = f" (quality of {scored} of them)" if scored < fewest else ""
    return (f"{most} prompts" if fewest == most else f"{fewest} to {most} prompts") + partly


def _gap(samples: pd.DataFrame, task: str, head: str) -> Gap | None:
    """The distance above the front with one head, where the run has both."""
    one = samples[(samples["method"] != LEARNED) | (samples["head"] == head)]
    try:
        return gap_above_front(one, task=task, method=LEARNED)
    except UsageError:
        return None


def _distance(found: Interval, scale: float) -> str:
    return f"{found.value * scale:+.1f}{_interval(found.low, found.high, scale)}"


def _named(gap: Gap) -> str:
    """The static point of less acceptance, and a warning where the next is far below it."""
    below, above = (name or "none" for name in gap.between)
    coarse = f", coarse: {above} is {100 * abs(gap.step):.0f} points away"
    return below + coarse * (abs(gap.step) > COARSE)


def _scale(cells: pd.DataFrame, task: str) -> float:
    metric = METRICS.get(cells[cells["task"] == task]["quality_metric"].iloc[0])
    return metric.scale if metric else 1.0


def _heading(cells: pd.DataFrame, task: str) -> str:
    metric = METRICS.get(cells[cells["task"] == task]["quality_metric"].iloc[0])
    return f"{task}, {metric.unit}" if metric else task


def _interval(low: float, high: float, scale: float) -> str:
    return "" if pd.isna(low) else f" [{low * scale:.1f}, {high * scale:.1f}]"


def _figure(cell: Any, name: str, scale: float) -> str:
    value = cell[name] * scale
    interval = _interval(cell[f"{name}_low"], cell[f"{name}_high"], scale)
    return "" if pd.isna(value) else f"{value:.1f}{interval}"


def _field(cell: Any, scale: float, less: str) -> str:
    quality = _figure(cell, "quality", scale)
    accepted, speedup = cell["draft_acceptance_rate"], cell["speedup"]
    paid = [] if pd.isna(accepted) else [f"{accepted:.0%}"]
    paid += [] if pd.isna(speedup) else [f"{speedup:.2f}×"]
    return "<br>".join(filter(None, [quality, less, ", ".join(paid)]))


def _less_than_sd(samples: pd.DataFrame, cells: pd.DataFrame, cell: Any) -> str:
    """The paired difference in quality of a method that drafts from plain SD."""
    sd = samples[(samples["method"] == "sd") & (samples["task"] == cell.name)]
    if cell["draft_length"] == 0 or cell["method"] == "sd" or sd["quality"].isna().all():
        return ""
    found = quality_difference(_of_cell(samples, cell), sd)
    return _distance(found, _scale(cells, cell.name))


def _of_cell(samples: pd.DataFrame, cell: Any) -> pd.DataFrame:
    """The samples of a cell of one task."""
    same = (samples["task"] == cell.name) & (samples["method"] == cell["method"])
    for name in PARAMETERS:
        same &= samples[name].isna() if pd.isna(cell[name]) else samples[name] == cell[name]
    return samples[same]
