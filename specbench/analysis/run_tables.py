"""Tables of one run: the page ``summary.md``, the terminal's tables, and transfer between tasks.

Rows are methods. On the page, columns are tasks, and a sweep of static weights is condensed: the
page shows the randomised static front at DIVERSED's acceptance, and the distance of DIVERSED above
it and above the nearest static point of lower acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.intervals import Interval
from specbench.analysis.pareto import Gap, front_of, gap_between
from specbench.analysis.points import settings_of
from specbench.analysis.summary import (
    ACCEPTANCE,
    AT_LIMIT,
    COMPLETED,
    QUALITY,
    REPETITION,
    SPEEDUP,
    TOKENS,
    further_metrics,
    less_than_sd,
    shown_name,
    shown_scale,
    wide,
)
from specbench.errors import UsageError
from specbench.heads.registry import BUNDLED, RESULTS
from specbench.metrics import shown_metric
from specbench.runs.frames import CELL, read_samples, read_summary
from specbench.runs.labels import method_labels
from specbench.table import (
    Cell,
    Column,
    Field,
    Table,
    cell_at,
    drop_empty,
    interval_of,
    markdown_line,
    number,
    number_of,
    to_markdown,
)

LEARNED = "diversed"
STRICT = "sd"
LESS = "Below a number: its difference from sd, paired by prompt [95 %]."
NO_BASELINE = "No tokens/s relative to autoregressive, which these runs lack."
TRANSFER = [
    *("run_id", "pair", "trained_on", "task"),
    *("metric", "value", "ci_low", "ci_high", "n", "unit"),
]

_SETTING = ["pair", "temperature", "engine", "batch_size", "draft_length"]
_Row = Mapping[Any, Any]  # a cell of a run: columns of ``summary.wide``, and ``label``
_Named = tuple[Any, Mapping[Any, Any]]  # a method or head, with its cells by task
_NAME: Field[_Named] = ("method", lambda named: str(named[0]))


def summary_page(samples: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Return ``summary.md``: a table or two for each pair, temperature, engine, batch size and N.

    Further tables have the price in quality of each method's texts and, if a task has any, further
    quality metrics.
    """
    cells = _labelled(summary, samples)
    settings = cells[cells["draft_length"] > 0][_SETTING].drop_duplicates()
    several = settings["engine"].nunique() > 1
    parts = []
    for setting in settings.to_dict("records") or cells[_SETTING].head(1).to_dict("records"):
        of_setting = _within(cells, setting)
        main = _page_table(_within(samples, setting), of_setting, setting)
        listed = of_setting["label"].isin([row[0] for row in main.rows if isinstance(row[0], str)])
        tables = [main, _texts_table(of_setting[listed])]
        further = _further_table(of_setting, further_metrics(summary))
        tables += [further] * bool(further.columns[1:])
        heading = f"Engine {setting['engine']}."
        parts += [f"{markdown_line(heading)}\n"] * several + [to_markdown(*tables)]
    return "\n".join(parts)


def run_tables(folder: Path) -> list[Table]:
    """Return two tables per task, with a row per cell in the order of the run.

    The second has further quality metrics and what a lossy rule may change about texts, with the
    difference from plain SD.

    Raises:
        UsageError: The folder holds no readable summary or samples.
    """
    summary = read_summary(folder)
    names: list[Field[_Row]] = [
        ("method", lambda cell: cell["label"]),
        ("N", lambda cell: str(cell["draft_length"] or "")),
    ]
    tables = []
    for task, cells_of_task in _labelled(summary, read_samples(folder)).groupby("task", sort=False):
        counts = summary[summary["task"] == task].groupby("metric")["n"].max()
        n, scored = counts.max(), counts.get(QUALITY, counts.max())
        partly = f", quality of {scored} of them" if 0 < scored < n else ""
        title = f"{task} on {cells_of_task['pair'].iloc[0]}, n = {n}{partly}"
        notes = [NO_BASELINE] * bool(cells_of_task[SPEEDUP].isna().all()) + _sessions(cells_of_task)
        unit, scale = shown_metric(cells_of_task["quality_metric"].iloc[0])
        figures: list[Field[_Row]] = [
            *names,
            (f"{unit or QUALITY}\n[95 %]", interval_of(QUALITY, ".1f", scale)),
            ("accepted /\ndrafted", number_of(ACCEPTANCE, ".1%")),
            ("tokens /\nround", number_of("acceptance_length", ".2f")),
            ("tokens/s", _speed),
            ("tokens/s\n/ AR's", number_of(SPEEDUP, ".2f")),
        ]
        lengths: list[Field[_Row]] = [
            *names,
            *(
                (f"{shown_name(name)} [95 %]", interval_of(name, ".1f", shown_scale(name)))
                for name in further_metrics(summary)
            ),
            (unit or QUALITY, _priced(QUALITY, ".1f", scale)),
            *[("of completed", _priced(COMPLETED, ".1f", scale))]
            * bool(cells_of_task[AT_LIMIT].any()),
            ("tokens", _priced(TOKENS, ".1f")),
            ("rounds", number_of("rounds", ".1f")),
            ("ended by limit", _priced(AT_LIMIT, ".1f", 100, "%")),
            ("repeated 4-grams", _priced(REPETITION, ".1f", 100, "%")),
        ]
        cells = cells_of_task.to_dict("records")
        tables.append(drop_empty(Table.of(cells, figures, title, notes, stub=2)))
        title = f"{task}: further metrics"
        notes = [LESS] * bool(cells_of_task[f"{QUALITY}_less"].any())
        tables.append(drop_empty(Table.of(cells, lengths, title, notes, stub=2)))
    return tables


def _sessions(cells: pd.DataFrame) -> list[str]:
    """Return a note on which cells were timed together, if not all were."""
    sessions = [", ".join(rows["label"].unique()) for _, rows in cells.groupby("session")]
    if len(sessions) == 1:
        return []
    return [
        f"Timed together: {'; '.join(sessions)}. Compare tokens/s only within such a group, and "
        "tokens/s / AR's between groups: autoregressive was timed in each."
    ]


def transfer_data(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the transfer matrix: one row per head, task and metric, columns ``TRANSFER``.

    ``trained_on`` is the training task of a head, or ``sd`` without a head.

    Raises:
        UsageError: The runs do not compare heads by training task, or there are several runs or
            draft lengths.
    """
    rows = summary[summary["method"].isin([LEARNED, STRICT])]
    rows = rows[rows["metric"].isin([ACCEPTANCE, QUALITY])]
    heads = rows.loc[rows["method"] == LEARNED, "head"]
    if heads.empty or heads.isin([BUNDLED, RESULTS]).any():
        raise UsageError(
            "these runs compare no heads by task: start with `specbench run -m sd,diversed --head "
            "TASK,TASK`, which names the heads by their tasks"
        )
    for name, noun in (("run_id", "run"), ("draft_length", "draft length")):
        if rows[name].nunique() > 1:
            raise UsageError(f"this figure needs a single {noun}: choose one")
    trained_on = rows["head"].where(rows["method"] == LEARNED, STRICT)
    return rows.assign(trained_on=trained_on)[TRANSFER].reset_index(drop=True)


def _labelled(summary: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with their labels and differences from plain SD."""
    cells = wide(summary).merge(less_than_sd(samples), on=list(CELL), how="left")
    return cells.assign(label=method_labels(cells.to_dict("records")))


def _within(frame: pd.DataFrame, setting: _Row) -> pd.DataFrame:
    """Select the rows of one setting, and those of autoregressive, which has no draft length."""
    same = frame["draft_length"].isin([0, setting["draft_length"]])
    for name in _SETTING[:-1]:
        same &= frame[name] == setting[name]
    return frame[same]


def _by_label(cells: pd.DataFrame) -> dict[str, dict[str, _Row]]:
    """Return the cells of each method by task."""
    by_label: dict[str, dict[str, _Row]] = {}
    for cell in cells.to_dict("records"):
        by_label.setdefault(str(cell["label"]), {})[cell["task"]] = cell
    return by_label


def _heading(task: object, unit: str) -> str:
    return f"{task}, {unit}" if unit else f"{task}"


def _page_table(samples: pd.DataFrame, cells: pd.DataFrame, setting: _Row) -> Table:
    tasks = zip(cells["task"], cells["quality_metric"], strict=True)
    units = {task: shown_metric(metric) for task, metric in tasks}
    methods = _by_label(cells)
    learned = cells.loc[cells["method"] == LEARNED, "label"].unique()
    gaps = {
        label: {task: _gap(samples, cell) for task, cell in methods[label].items()}
        for label in learned
    }
    swept = all(any(by_task.get(task) for by_task in gaps.values()) for task in units)

    def across(by_task: Mapping[str, Any], show: Callable[[Any, float], str]) -> list[str]:
        """Return a text for each task, blank if unknown."""
        values = ((by_task.get(task), scale) for task, (_, scale) in units.items())
        return ["" if value is None else show(value, scale) for value, scale in values]

    def field(cell: _Row, scale: float) -> str:
        accepted, speedup = number(cell[ACCEPTANCE], ".0%"), number(cell[SPEEDUP], ".2f")
        paid = ", ".join(filter(None, [accepted, speedup and f"{speedup}×"]))
        quality = interval_of(QUALITY, ".1f", scale)(cell)
        return "\n".join(filter(None, [quality, _less(cell, QUALITY, scale), paid]))

    static = cells.loc[cells["method"] == "static", "label"].unique() if swept else ()
    rows: list[list[str | Cell]] = [
        [label, *across(by_task, field)]
        for label, by_task in methods.items()
        if label not in static
    ]
    for label, by_task in gaps.items() if swept else ():
        name = "static front (randomised)"
        front = across(
            by_task, lambda g, scale: f"{g.front * scale:.1f}\n{g.reached.acceptance[0, 0]:.0%}"
        )
        above = across(by_task, lambda gap, scale: _distance(gap.above, scale))
        rows += [
            [f"{name} at the acceptance of {label}", *front],
            [Cell(text, best=True) for text in (f"{label} above the {name}", *above)],
            [f"{label} above its next measured point", *across(by_task, _above_measured)],
        ]
    title = (
        f"Pair {setting['pair']}, T = {setting['temperature']:g}, N = {setting['draft_length']}, "
        f"{_prompts(samples)} per task. Each field: quality with its 95 % interval, its difference "
        "from sd, paired by prompt, accepted over drafted tokens, and tokens/s over those of "
        "autoregressive"
    )
    columns = (Column(_heading(task, unit), align="left") for task, (unit, _) in units.items())
    return Table(title, [Column("method"), *columns], rows)


def _texts_table(cells: pd.DataFrame) -> Table:
    """Return the table of what a lossy rule may change about texts: a column per task."""

    def field(cell: _Row) -> str:
        _, scale = shown_metric(cell["quality_metric"])
        figures = [(TOKENS, 1.0, "tokens"), (REPETITION, 100.0, "% repeated")]
        if limited[cell["task"]]:
            figures += [(AT_LIMIT, 100.0, "% at the limit"), (COMPLETED, scale, "if completed")]
        texts = ((number(by * cell[name], ".1f"), name, by, words) for name, by, words in figures)
        return "\n".join(
            ", ".join(filter(None, [f"{value} {words}", _less(cell, name, by)]))
            for value, name, by, words in texts
            if value
        )

    limited = cells.groupby("task")[AT_LIMIT].max() >= 0.01
    tasks = cells["task"].unique()
    fields = [(Column(task, align="left"), cell_at(task, field)) for task in tasks]
    title = (
        "Texts. Each field: mean output tokens, share of 4-grams that repeat an earlier one and, "
        "if a method ended 1 % of texts at the length limit, their share and the quality of the "
        "others, with differences from sd, paired by prompt"
    )
    return Table.of(_by_label(cells).items(), [_NAME, *fields], title)


def _priced(name: str, form: str, scale: float = 1.0, unit: str = "") -> Callable[[_Row], Cell]:
    """Return a function that shows a figure of texts above its difference from plain SD."""

    def show(cell: _Row) -> Cell:
        value = number(scale * cell[name], form)
        return Cell(value and value + unit, _less(cell, name, scale))

    return show


def _less(cell: _Row, name: str, scale: float) -> str:
    """Return the difference of a figure of texts from plain SD's; blank if unknown."""
    value, low, high = (cell[f"{name}_less{end}"] for end in ("", "_low", "_high"))
    return "" if pd.isna(value) else _distance(Interval(value, low, high, 0), scale)


def _gap(samples: pd.DataFrame, cell: _Row) -> Gap | None:
    """Return the gap of a head to the static front at its acceptance, if the run has a front."""
    of_task = settings_of(samples[samples["task"] == cell["task"]])
    settings = [setting for setting in of_task if setting.drafter == cell["drafter"]]
    heads = [s for s in settings if s.method == LEARNED and s.cell["head"] == cell["head"]]
    try:
        return gap_between(heads[:1], front_of(settings), "acceptance")
    except UsageError:
        return None


def _above_measured(gap: Gap, scale: float) -> str:
    """Return the distance above the static point of lower acceptance, and whether it is coarse."""
    below, above = (name or "none" for name in gap.between)
    coarse = f", coarse: {above} is {100 * abs(gap.step):.0f} points away"
    return f"{_distance(gap.above_measured, scale)}\n{below}{coarse * gap.coarse}"


def _distance(found: Interval, scale: float) -> str:
    low, high = (number(scale * end, ".1f") for end in found[1:3])
    return number(scale * found.value, "+.1f") + (f" [{low}, {high}]" if low else "")


def _prompts(samples: pd.DataFrame) -> str:
    counts = samples.groupby("task")["sample_id"].nunique()
    fewest, most = counts.min(), counts.max()
    scored = samples[samples["quality"].notna()].groupby("task")["sample_id"].nunique().min()
    partly = f" (quality of {scored} of them)" if scored < fewest else ""
    return (f"{most} prompts" if fewest == most else f"{fewest} to {most} prompts") + partly


def _further_table(cells: pd.DataFrame, metrics: Sequence[str]) -> Table:
    """Return the table of further quality metrics: a column per task and metric."""
    figures: list[Field[_Named]] = [
        (
            Column(f"{task}, {shown_name(name)}", align="left"),
            cell_at(task, interval_of(name, ".1f", shown_scale(name))),
        )
        for task in cells["task"].unique()
        for name in metrics
    ]
    title = "Further metrics, with their 95 % intervals"
    return drop_empty(Table.of(_by_label(cells).items(), [_NAME, *figures], title))


def _speed(cell: _Row) -> str:
    """Return tokens/s with enough digits that slow speeds do not show as 0."""
    speed = cell["tokens_per_second"]
    return number(speed, ".3g" if speed < 99.95 else ".0f")
