"""The tables of runs, on the terminal, in ``summary.md`` and on the page of a report.

Verdicts come first, then a row for each cell: its figures, and what a lossy rule may change about
texts. This module also has the transfer between tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from specbench.analysis.compare import cautions
from specbench.analysis.compare_tables import comparison_tables, verdict_tables
from specbench.analysis.comparison import POOLED
from specbench.analysis.estimates import AT_LIMIT, COMPLETED, QUALITY, REPETITION, TOKENS
from specbench.analysis.output.shown import (
    Row,
    ShownFigure,
    setting_text,
    shown,
    shown_score,
    span,
)
from specbench.analysis.output.table import Field, Table, drop_empty, markdown_line, to_markdown
from specbench.analysis.remarks import DOUBTS, remarks
from specbench.analysis.results import Results
from specbench.analysis.summary import (
    ACCEPTANCE,
    SPEEDUP,
    cells_of,
    further_metrics,
    prompt_counts,
    summarise,
)
from specbench.errors import UsageError
from specbench.files import digits, write_atomically
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.columns import TIMED
from specbench.runs.frames import read_samples, rows_of, without_repeats
from specbench.runs.labels import BUNDLED, RESULTS
from specbench.runs.records import DIGEST, SUMMARY, write_samples
from specbench.runs.run import read_run

LEARNED = "diversed"
STRICT = "sd"
LESS = "minus sd: paired by prompt, with its 95 % interval."
COUNTED = "tokens / round: of all rounds, also the last of a text, which its end may cut."
PREFILL = "Seconds and tokens/s include prefill."
NO_BASELINE = "No tokens/s relative to autoregressive, which these runs lack."
NO_TIMES = "These runs have no times."
TRANSFER = [
    *("run_id", "pair", "trained_on", "task"),
    *("metric", "value", "ci_low", "ci_high", "n", "unit"),
]
_SPEEDS = ("seconds_per_sample", "tokens_per_second", SPEEDUP)
_FIGURES = (QUALITY, ACCEPTANCE, "acceptance_length", *_SPEEDS)
_TEXTS = (TOKENS, "rounds", AT_LIMIT, REPETITION, f"{ACCEPTANCE}_sample_mean")


def run_tables(results: Results, *, further: bool = False) -> list[Table]:
    """Return the verdicts of runs and the figures of their cells.

    ``further`` adds the distances from fronts at equal acceptance and the texts of the cells, and
    gives each figure its interval.
    """
    verdicts = [*verdict_tables(results.comparison)]
    if not further:  # differences from sd stand in the verdicts
        return [
            *verdicts,
            *figure_tables(results.cells if verdicts else results.cells_beside_sd()),
        ]
    cells = results.cells_beside_sd()
    return [
        *verdicts,
        *comparison_tables(results.comparison, ["acceptance"]),
        *figure_tables(cells, intervals=True),
        *text_tables(cells),
    ]


def figure_tables(cells: pd.DataFrame, *, intervals: bool = False) -> Iterator[Table]:
    """Yield a table of quality, acceptance and speed for each task and setting.

    ``cells`` is the frame of cells; if it has differences from plain SD, the table shows them.
    Without ``intervals``, only quality has one.
    """
    for title, rows in _by_setting(cells):
        notes = [*without_speedup(rows), *([COUNTED] if rows["acceptance_length"].any() else [])]
        if rows["seconds_per_sample"].any():
            notes += [PREFILL, *_sessions(rows)]
        yield _table(title, rows, _FIGURES, notes, intervals)


def without_speedup(cells: pd.DataFrame) -> list[str]:
    """Return a note on why cells have no speed-up, if none has one."""
    if not cells["tokens_per_second"].any():
        return [NO_TIMES]
    return [] if AUTOREGRESSIVE in set(cells["method"]) or cells[SPEEDUP].any() else [NO_BASELINE]


def text_tables(cells: pd.DataFrame) -> Iterator[Table]:
    """Yield a table of further metrics and of the texts for each task and setting."""
    further = [*map(shown_score, further_metrics(cells))]
    for title, rows in _by_setting(cells):
        completed = [COMPLETED] if rows[AT_LIMIT].any() else []  # else it is quality
        yield _table(f"Texts, {title}", rows, [*completed, *further, *_TEXTS])


def _by_setting(cells: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield title and cells of each task and setting."""
    several = [name for name in ("engine", "batch_size") if cells[name].nunique() > 1]
    setting = ["task", "pair", "temperature", "engine", "batch_size"]
    for _, rows in cells.groupby(setting, sort=False):
        n, scored = prompt_counts(rows), rows[f"{QUALITY}_n"].max()
        partly = f", quality of {scored:.0f} of them" if 0 < scored < n.max() else ""
        yield f"{setting_text(rows.iloc[0], several)}, n = {span(n)}{partly}", rows


def _table(
    title: str,
    cells: pd.DataFrame,
    figures: Sequence[str | ShownFigure],
    notes: Sequence[str] = (),
    intervals: bool = True,
) -> Table:
    """Return a table with a row for each cell, and figures with their differences from plain SD."""
    fields: list[Field[Row]] = [("method", lambda cell: cell["label"])]
    if cells["draft_length"].any():
        fields.append(("N", lambda cell: str(cell["draft_length"] or "")))
    if cells["run_id"].nunique() > 1:
        fields.append(("run", lambda cell: cell["run_id"]))
    stub, compared = len(fields), False
    for named in figures:
        metric = cells["quality_metric"].iloc[0]
        figure = shown(named, metric) if isinstance(named, str) else named
        inline = figure.interval if named == QUALITY else figure.number
        less = figure.less()
        fields += [
            (figure.narrow, figure.cell if intervals else inline),
            (less.narrow, less.interval),
        ]
        compared |= less.name in cells and bool(cells[less.name].notna().any())
    paired = [LESS, POOLED] if compared else []
    return drop_empty(Table.of(rows_of(cells), fields, title, [*notes, *paired], stub))


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


def summary_page(results: Results) -> str:
    """Return the tables of a run as Markdown, with cautions about its fronts."""
    notes = (f"{markdown_line(text)}.\n" for text in cautions(results.comparison))
    return "\n".join([to_markdown(*run_tables(results, further=True)), *notes])


def write_summary(folder: Path, run: Path | None = None) -> None:
    """Write ``summary.csv`` and ``summary.md`` from the tables of samples in a folder.

    Args:
        folder: Where the tables are.
        run: The run; None if it is the same folder.
    """
    decodes = read_samples(folder, timings=TIMED)
    summary = summarise(without_repeats(decodes))
    write_atomically(folder / SUMMARY, summary.to_csv(index=False, float_format=digits))
    described = read_run(run or folder, required=False)
    doubts = remarks(cells_of(summary), {str(summary["run_id"].iloc[0]): described}, DOUBTS)
    page = summary_page(Results.of(decodes=decodes, _summary=summary))
    write_atomically(
        folder / DIGEST, "\n".join([page, *(f"{markdown_line(text)}\n" for text in doubts)])
    )


def write_tables(folder: Path, into: Path | None = None) -> None:
    """Write all tables of a run from its records, if any sample was decoded.

    Args:
        folder: The run.
        into: Where to write them; None writes them into the run.
    """
    if write_samples(folder, into):
        write_summary(into or folder, folder)
