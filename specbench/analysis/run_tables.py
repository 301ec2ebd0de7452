"""Tables of one run: its summaries, the terminal's tables, and transfer between tasks.

Rows are methods. On the page ``summary.md``, columns are tasks, and a sweep of static weights is
condensed: the page shows the randomised static front at DIVERSED's acceptance, and the distance of
DIVERSED above it and above the nearest static point of lower acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis import estimates as e
from specbench.analysis.output.shown import ShownFigure, shown, shown_score, span
from specbench.analysis.output.table import (
    Column,
    Field,
    Table,
    TableCell,
    cell_at,
    drop_empty,
    markdown_line,
    percent,
    to_markdown,
)
from specbench.analysis.pareto import front_of, gap_between
from specbench.analysis.points import settings_of
from specbench.analysis.remarks import DOUBTS, remarks
from specbench.analysis.summary import (
    ACCEPTANCE,
    SPEEDUP,
    cells_of,
    further_metrics,
    summarise,
    with_differences,
)
from specbench.errors import UsageError
from specbench.files import digits, write_atomically
from specbench.runs.columns import TIMED_BASELINE
from specbench.runs.frames import first_decodes, read_samples, rows_of
from specbench.runs.labels import BUNDLED, RESULTS
from specbench.runs.records import DIGEST, SUMMARY, write_samples
from specbench.runs.run import read_run
from specbench.tasks.metrics import shown_metric

LEARNED = "diversed"
STRICT = "sd"
LESS = "Below a number: its difference from sd, paired by prompt [95 %]."
POOLED = (
    "Differences are from sd's samples of all its draft lengths and drafters together, which have "
    "the same distribution."
)
NO_BASELINE = "No tokens/s relative to autoregressive, which these runs lack."
TRANSFER = [
    *("run_id", "pair", "trained_on", "task"),
    *("metric", "value", "ci_low", "ci_high", "n", "unit"),
]

_SETTING = ["pair", "temperature", "engine", "batch_size", "draft_length"]
_Row = Mapping[Any, Any]  # of the frame of cells
_Named = tuple[Any, Mapping[Any, Any]]  # a method or head, with its cells by task
_NAME: Field[_Named] = ("method", lambda named: str(named[0]))


def summary_page(samples: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Return ``summary.md``: a table or two for each pair, temperature, engine, batch size and N.

    Further tables have the price in quality of each method's texts and, if a task has any, further
    quality metrics.
    """
    cells = with_differences(cells_of(summary), samples)
    settings = cells[cells["draft_length"] > 0][_SETTING].drop_duplicates()
    parts = []
    for setting in rows_of(settings) or rows_of(cells[_SETTING].head(1)):
        of_setting = _within(cells, setting)
        main = _page_table(_within(samples, setting), of_setting, setting)
        listed = of_setting["label"].isin([row[0] for row in main.rows if isinstance(row[0], str)])
        tables = [main, _texts_table(of_setting[listed])]
        further = _further_table(of_setting, further_metrics(cells))
        if further.columns[1:]:
            tables.append(further)
        if settings["engine"].nunique() > 1:
            parts.append(markdown_line(f"Engine {setting['engine']}.") + "\n")
        parts.append(to_markdown(*tables))
    return "\n".join(parts)


def run_tables(cells: pd.DataFrame) -> list[Table]:
    """Return two tables per task, with a row per cell, from the frame of cells.

    The second has further quality metrics and what a lossy rule may change about texts. Both show
    differences from plain SD if the cells have them.
    """
    names: list[Field[_Row]] = [
        ("method", lambda cell: cell["label"]),
        ("N", lambda cell: str(cell["draft_length"] or "")),
    ]
    counts = [name for name in cells if str(name).endswith("_n")]
    tables = []
    for task, cells_of_task in cells.groupby("task", sort=False):
        metric = cells_of_task["quality_metric"].iloc[0]
        quality, completed = shown(e.QUALITY, metric), shown(e.COMPLETED, metric)
        n, scored = cells_of_task[counts].max(axis=None), cells_of_task[f"{e.QUALITY}_n"].max()
        partly = f", quality of {scored:.0f} of them" if 0 < scored < n else ""
        title = f"{task} on {cells_of_task['pair'].iloc[0]}, n = {n:.0f}{partly}"
        notes = _sessions(cells_of_task)
        if cells_of_task[SPEEDUP].isna().all():
            notes.insert(0, NO_BASELINE)
        measured = map(shown, (ACCEPTANCE, "acceptance_length", "tokens_per_second", SPEEDUP))
        heading, interval = quality.column_with_interval
        figures = [
            *names,
            (heading, _above_difference(interval, quality)),
            *(figure.column for figure in measured),
        ]
        of_texts = [completed] if cells_of_task[e.AT_LIMIT].any() else []
        of_texts += map(shown, (e.TOKENS, "rounds", e.AT_LIMIT, e.REPETITION))
        texts = [
            *names,
            *(shown_score(name).column_with_interval for name in further_metrics(cells)),
            *((figure.narrow, _above_difference(figure.text, figure)) for figure in of_texts),
        ]
        records = rows_of(cells_of_task)
        strict = cells_of_task.loc[cells_of_task["method"] == STRICT, ["draft_length", "drafter"]]
        pooled = [POOLED] if len(strict.drop_duplicates()) > 1 else []
        compared = f"{e.QUALITY}_less" in cells and cells_of_task[f"{e.QUALITY}_less"].any()
        less = [LESS, *pooled] if compared else []
        tables.append(drop_empty(Table.of(records, figures, title, [*notes, *less], stub=2)))
        title = f"{task}: further metrics"
        tables.append(drop_empty(Table.of(records, texts, title, less, stub=2)))
    return tables


def _sessions(cells: pd.DataFrame) -> list[str]:
    """Return a note on which cells were timed together, if not all were."""
    sessions = [", ".join(rows["label"].unique()) for _, rows in cells.groupby("session")]
    if len(sessions) == 1:
        return []
    has_speedup = cells.groupby("session")[SPEEDUP].any()  # its baseline was timed with it
    between = ", and tokens/s / AR's between groups: autoregressive was timed in each"
    return [
        f"Timed together: {'; '.join(sessions)}. Compare tokens/s only within such a group"
        f"{between if has_speedup.all() else ''}."
    ]


def transfer_data(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the transfer matrix: one row per head, task and metric, columns ``TRANSFER``.

    ``trained_on`` is the training task of a head, or ``sd`` without a head.

    Raises:
        UsageError: The runs do not compare heads by training task, or there are several runs or
            draft lengths.
    """
    rows = summary[summary["method"].isin([LEARNED, STRICT])]
    rows = rows[rows["metric"].isin([ACCEPTANCE, e.QUALITY])]
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


def _within(frame: pd.DataFrame, setting: _Row) -> pd.DataFrame:
    """Select the rows of one setting, and those of autoregressive, which has no draft length."""
    same = frame["draft_length"].isin([0, setting["draft_length"]])
    for name in _SETTING[:-1]:
        same &= frame[name] == setting[name]
    return frame[same]


def _by_label(cells: pd.DataFrame) -> dict[str, dict[str, _Row]]:
    """Return the cells of each method by task."""
    by_label: dict[str, dict[str, _Row]] = {}
    for cell in rows_of(cells):
        by_label.setdefault(str(cell["label"]), {})[cell["task"]] = cell
    return by_label


def _page_table(samples: pd.DataFrame, cells: pd.DataFrame, setting: _Row) -> Table:
    metrics = dict(zip(cells["task"], cells["quality_metric"], strict=True))
    methods = _by_label(cells)
    learned = cells.loc[cells["method"] == LEARNED, "label"].unique()
    gaps = {
        label: {task: _beside_front(samples, cell) for task, cell in methods[label].items()}
        for label in learned
    }
    swept = all(any(by_task.get(task) for by_task in gaps.values()) for task in metrics)

    def across(by_task: Mapping[str, _Row], text: Callable[[_Row], str]) -> list[str]:
        """Return a text for each task, blank if unknown."""
        return [text(by_task[task]) if by_task.get(task) else "" for task in metrics]

    def field(cell: _Row) -> str:
        quality, speedup = shown(e.QUALITY, cell["quality_metric"]), shown(SPEEDUP).text(cell)
        accepted = shown(ACCEPTANCE)._replace(form=".0f").text(cell)
        paid = ", ".join(filter(None, [accepted, speedup and f"{speedup}×"]))
        difference = quality.less().interval(cell)
        return "\n".join(filter(None, [quality.interval(cell), difference, paid]))

    static = cells.loc[cells["method"] == "static", "label"].unique() if swept else ()
    rows: list[list[str | TableCell]] = [
        [label, *across(by_task, field)]
        for label, by_task in methods.items()
        if label not in static
    ]
    for label, by_task in gaps.items() if swept else ():
        name = "static front (randomised)"
        above = across(by_task, lambda row: shown(e.ABOVE, row["quality_metric"]).interval(row))
        rows += [
            [f"{name} at the acceptance of {label}", *across(by_task, _front)],
            [TableCell(text, best=True) for text in (f"{label} above the {name}", *above)],
            [f"{label} above the front at its next point", *across(by_task, _above_measured)],
        ]
    title = (
        f"Pair {setting['pair']}, T = {setting['temperature']:g}, N = {setting['draft_length']}, "
        f"{_prompts(samples)} per task. Each field: quality with its 95 % interval, its difference "
        "from sd, paired by prompt, accepted over drafted tokens, and tokens/s over those of "
        "autoregressive"
    )
    headings = (", ".join(filter(None, [t, shown_metric(m)[0]])) for t, m in metrics.items())
    columns = (Column(heading, align="left") for heading in headings)
    return Table(title, [Column("method"), *columns], rows)


def _texts_table(cells: pd.DataFrame) -> Table:
    """Return the table of what a lossy rule may change about texts: a column per task."""

    def field(cell: _Row) -> str:
        figures = [(e.TOKENS, " tokens"), (e.REPETITION, " repeated")]
        if limited[cell["task"]]:
            figures += [(e.AT_LIMIT, " at the limit"), (e.COMPLETED, " if completed")]
        lines = []
        for name, words in figures:
            figure = shown(name, cell["quality_metric"])
            if value := figure.text(cell):
                difference = figure.less().interval(cell)
                lines.append(", ".join(filter(None, [value + words, difference])))
        return "\n".join(lines)

    limited = cells.groupby("task")[e.AT_LIMIT].max() >= 0.01
    tasks = cells["task"].unique()
    fields = [(Column(task, align="left"), cell_at(task, field)) for task in tasks]
    title = (
        "Texts. Each field: mean output tokens, share of 4-grams that repeat an earlier one and, "
        "if a method ended 1 % of texts at the length limit, their share and the quality of the "
        "others, with differences from sd, paired by prompt"
    )
    return Table.of(_by_label(cells).items(), [_NAME, *fields], title)


def _above_difference(
    text: Callable[[_Row], str | TableCell], figure: ShownFigure
) -> Callable[[_Row], TableCell]:
    """Return a function that shows the text of a figure above its difference from plain SD."""
    return lambda cell: TableCell(str(text(cell)), figure.less().interval(cell))


def _beside_front(samples: pd.DataFrame, cell: _Row) -> _Row:
    """Return a head's distance from the static front; empty if the run has no front."""
    of_task = settings_of(samples[samples["task"] == cell["task"]])
    settings = [setting for setting in of_task if setting.drafter in (cell["drafter"], None)]
    heads = [s for s in settings if s.method == LEARNED and s.cell["head"] == cell["head"]]
    try:
        gap = gap_between(heads[:1], front_of(settings), "acceptance")
    except UsageError:
        return {}
    below, above = (name or "none" for name in gap.between)
    return e.wide({e.ABOVE: gap.above, e.ABOVE_MEASURED: gap.above_measured}) | {
        "quality_metric": cell["quality_metric"],
        e.QUALITY: gap.front,
        ACCEPTANCE: float(gap.reached.acceptance[0, 0]),
        "next": below,
        "coarse": f", coarse: {above} is {100 * abs(gap.step):.0f} points away" * gap.coarse,
    }


def _front(row: _Row) -> str:
    """Return the front's quality at a head's acceptance, and the acceptance."""
    quality = shown(e.QUALITY, row["quality_metric"]).text(row)
    return f"{quality}\n{percent(row[ACCEPTANCE])}"


def _above_measured(row: _Row) -> str:
    """Return the distance above the static point of lower acceptance, and whether it is coarse."""
    distance = shown(e.ABOVE_MEASURED, row["quality_metric"]).interval(row)
    return f"{distance}\n{row['next']}{row['coarse']}"


def _prompts(samples: pd.DataFrame) -> str:
    counts = samples.groupby("task")["sample_id"].nunique()
    scored = samples[samples["quality"].notna()].groupby("task")["sample_id"].nunique().min()
    partly = f" (quality of {scored} of them)" if scored < counts.min() else ""
    return f"{span(counts)} prompts{partly}"


def _further_table(cells: pd.DataFrame, metrics: Sequence[str]) -> Table:
    """Return the table of further quality metrics: a column per task and metric."""
    figures: list[Field[_Named]] = [
        (
            Column(f"{task}, {shown_score(name).heading}", align="left"),
            cell_at(task, shown_score(name).interval),
        )
        for task in cells["task"].unique()
        for name in metrics
    ]
    title = "Further metrics, with their 95 % intervals"
    return drop_empty(Table.of(_by_label(cells).items(), [_NAME, *figures], title))


def write_summary(folder: Path, run: Path | None = None) -> None:
    """Write ``summary.csv`` and ``summary.md`` from the tables of samples in a folder.

    Args:
        folder: Where the tables are.
        run: The run; None if it is the same folder.
    """
    timed = read_samples(folder, timings=[TIMED_BASELINE])
    samples = first_decodes(timed).drop(columns="timing", errors="ignore")
    summary = summarise(timed)
    write_atomically(folder / SUMMARY, summary.to_csv(index=False, float_format=digits))
    described = read_run(run or folder, required=False)
    doubts = remarks(cells_of(summary), {str(summary["run_id"].iloc[0]): described}, DOUBTS)
    page = [summary_page(samples, summary), *(f"{markdown_line(text)}\n" for text in doubts)]
    write_atomically(folder / DIGEST, "\n".join(page))


def write_tables(folder: Path, into: Path | None = None) -> None:
    """Write all tables of a run from its records, if any sample was decoded.

    Args:
        folder: The run.
        into: Where to write them; None writes them into the run.
    """
    if write_samples(folder, into):
        write_summary(into or folder, folder)
