"""The tables of runs, on the terminal, in ``summary.md`` and on the page of a report.

Verdicts come first, then a row for each cell: its figures, and what a lossy rule may change about
texts. This module also has the transfer between tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from specbench.analysis.statistics.estimates import AT_LIMIT, COMPLETED, QUALITY, REPETITION, TOKENS
from specbench.analysis.statistics.summary import (
    ACCEPTANCE,
    SPEEDUP,
    further_metrics,
    prompt_counts,
)
from specbench.analysis.tables.shown import Row, ShownFigure, setting_text, shown, shown_score, span
from specbench.analysis.tables.table import Field, Table, condensed
from specbench.analysis.verdicts.contrasts import POOLED
from specbench.errors import UsageError
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.frames import in_order, rows_of
from specbench.runs.labels import BUNDLED, RESULTS, SERVERS

LEARNED = "diversed"
STRICT = "sd"
LESS = "minus sd: paired by prompt, with its 95 % interval."
COUNTED = "tokens / round: of all rounds, also the last of a text, which its end may cut."
PREFILL = "Seconds and tokens/s include prefill."
NO_BASELINE = "No tokens/s relative to autoregressive, which these runs lack."
OF_SERVERS = (
    "Of servers, tokens/s / AR's compares engines, too: `compare RUN --against SERVER` compares "
    "servers."
)
NO_TIMES = "These runs have no times."
NO_RATES = "No tokens/s: the servers do not tell how many tokens they wrote."
TRANSFER = [
    *("run_id", "pair", "trained_on", "task"),
    *("metric", "value", "ci_low", "ci_high", "n", "unit"),
]
_SPEEDS = ("seconds_per_sample", "tokens_per_second", SPEEDUP)
_FIGURES = (QUALITY, ACCEPTANCE, "acceptance_length", *_SPEEDS)
_TEXTS = (TOKENS, "rounds", AT_LIMIT, REPETITION, f"{ACCEPTANCE}_sample_mean")


def figure_tables(cells: pd.DataFrame, *, intervals: bool = False) -> Iterator[Table]:
    """Yield a table of quality, acceptance and speed for each task and setting.

    ``cells`` is the frame of cells; if it has differences from plain SD, the table shows them.
    Without ``intervals``, only quality has one.
    """
    for title, rows in _by_setting(cells):
        notes = [*without_speedup(rows), *([COUNTED] if rows["acceptance_length"].any() else [])]
        if rows["seconds_per_sample"].any():
            notes.append(PREFILL)
        if str(rows["engine"].iloc[0]).endswith(SERVERS) and rows[SPEEDUP].any():
            notes.append(OF_SERVERS)
        groups = [", ".join(timed["label"].unique()) for _, timed in rows.groupby("session")]
        if rows["seconds_per_sample"].any() and len(groups) > 1:  # not all were timed together
            # Its baseline was timed with each group that has a speed-up.
            has_speedup = rows.groupby("session")[SPEEDUP].any().all()
            between = ", and tokens/s / AR's between groups: autoregressive was timed in each"
            notes.append(
                f"Timed together: {'; '.join(groups)}. Compare tokens/s only within such a group"
                f"{between if has_speedup else ''}."
            )
        yield _table(title, rows, _FIGURES, notes, intervals)


def without_speedup(cells: pd.DataFrame) -> list[str]:
    """Return a note on why cells have no speed-up, if none has one."""
    if not cells["tokens_per_second"].any():
        return [NO_RATES if cells["seconds_per_sample"].any() else NO_TIMES]
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
    for _, unordered in cells.groupby(setting, sort=False):
        rows = in_order(unordered)
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
    return condensed(Table.of(rows_of(cells), fields, title, [*notes, *paired], stub))


def transfer_data(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a row per head (``trained_on``, ``sd`` without one), task and metric: ``TRANSFER``."""
    rows = summary[summary["method"].isin([LEARNED, STRICT])]
    rows = rows[rows["metric"].isin([ACCEPTANCE, QUALITY])]
    heads = rows.loc[rows["method"] == LEARNED, "head"]
    if heads.empty or heads.isin([BUNDLED, RESULTS]).any():
        raise UsageError(
            "these runs compare no heads by task: start with `specbench run -m sd,diversed --head "
            "TASK,TASK`, which names the heads by their tasks"
        )
    for name in ("run_id", "draft_length", "drafter"):
        if rows[name].nunique() > 1:
            noun = name.removesuffix("_id").replace("_", " ")
            raise UsageError(f"this figure needs a single {noun}: choose one")
    trained_on = rows["head"].where(rows["method"] == LEARNED, STRICT)
    return rows.assign(trained_on=trained_on)[TRANSFER].reset_index(drop=True)
