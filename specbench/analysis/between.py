"""Compare two runs cell by cell, paired by their samples' names.

Pairs, engines, machines and versions may differ between the runs: that is what is compared. Times
depend on machine and day, so they are compared only on request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import comparison as c
from specbench.analysis.compare_tables import merge_metrics
from specbench.analysis.intervals import Interval
from specbench.analysis.points import Setting, shared_points
from specbench.analysis.scores import quality_difference, score_interval
from specbench.runs.frames import CELL
from specbench.runs.labels import method_labels
from specbench.runs.shown import shown, temperature_text
from specbench.runs.table import Column, Field, Table, drop_empty, number

#: Value of ``at`` in the rows of a comparison of two runs.
BETWEEN = "two runs"
#: Share of the samples that have the same counts and, by the same metric, the same quality.
EQUAL = "equal_samples"

EQUAL_NOTE = "equal samples: share with the same tokens, rounds, accepted drafts and quality."
TIMES_NOTE = (
    "s/sample: above 1, B is faster; the interval covers the prompts, not what changed on the "
    "machine between the runs."
)

_OF_RUN = {"run_id", "pair", "engine", "batch_size", "session"}
_CELL = [name for name in CELL if name not in _OF_RUN]
_SAMPLE = ["sample_id", "turn", "repeat"]
_COUNTS = ["output_tokens", "rounds", "proposed", "accepted"]

_Row = dict[str, Any]


def between_runs(samples: pd.DataFrame, *, times: bool) -> pd.DataFrame:
    """Compare the second of two runs with the first, in the cells that both have.

    Returns:
        Columns ``comparison.COMPARISON`` with ``at`` = ``BETWEEN``: a row's run is the second one,
        ``against`` names the first one, and ``reference`` is its value. The metrics are the
        differences in quality and acceptance, ``EQUAL`` and, with ``times``, ``TIMES``. It has no
        rows if the runs share no sample.
    """
    runs = samples["run_id"].unique()
    rows: list[_Row] = []
    samples = samples.assign(seconds=samples["prefill_seconds"] + samples["decode_seconds"])
    for _, cell in samples.groupby(_CELL, sort=False, dropna=False):
        earlier, later = cell[cell["run_id"] == runs[0]], cell[cell["run_id"] == runs[-1]]
        shared = earlier[_SAMPLE].merge(later[_SAMPLE])
        if len(shared) and len(runs) > 1:
            rows += _compare_cells(shared.merge(earlier), shared.merge(later), times)
    return pd.DataFrame(rows, columns=list(c.COMPARISON))


def _compare_cells(base: pd.DataFrame, own: pd.DataFrame, times: bool) -> Iterator[_Row]:
    """Compare the samples of one cell, which are in the same order on both sides."""
    cell = own.iloc[0]
    earlier_figures, later_figures = map(_figures, (base, own))
    shared = {name: cell[name] for name in c.COMPARISON if name in cell} | later_figures
    shared |= {"at": BETWEEN, "label": method_labels([dict(cell)])[0], "points": 1}
    shared |= {"against": base["run_id"].iloc[0], "against_draft_length": cell["draft_length"]}

    def row(metric: str, of: str, figure: Interval) -> _Row:
        return {**shared, "reference": earlier_figures.get(of), **c.figure_columns(metric, figure)}

    reached = shared_points([Setting(side).without_quality() for side in (own, base)]).estimates()
    same_metric = base["quality_metric"].iloc[0] == cell["quality_metric"]
    if (
        same_metric
        and not np.isnan(later_figures["quality"])
        and not np.isnan(earlier_figures["quality"])
    ):
        yield row(c.QUALITY_LESS, "quality", quality_difference(own, base))
    if cell["draft_length"]:
        yield row(c.ACCEPTANCE_LESS, "acceptance", reached.difference("acceptance", [0], 1))
    samples = pd.concat([own, base])
    if times and not samples["session"].any() and (samples["batch_size"] == 1).all():
        yield row(c.TIMES, "seconds", reached.ratio("samples_per_second", [0], 1))
    counts = [*_COUNTS, "quality"] if same_metric else _COUNTS
    alike = (own[counts].fillna(-1) == base[counts].fillna(-1)).all(axis=1)
    yield row(EQUAL, "", Interval(alike.mean(), np.nan, np.nan, own["sample_id"].nunique()))


def _figures(cell: pd.DataFrame) -> dict[str, float]:
    """Return the columns of ``COMPARISON`` that describe one side."""
    metric = cell["quality_metric"].iloc[0]
    scored = cell["quality"].notna().any()
    return {
        "quality": score_interval(cell, "quality", metric).value if scored else np.nan,
        "acceptance": cell["accepted"].sum() / (cell["proposed"].sum() or np.nan),
        "seconds": cell["seconds"].mean(),
    }


def between_tables(rows: pd.DataFrame) -> Iterator[Table]:
    """Yield a table per task of rows from ``between_runs``."""
    for (task, temperature), group in rows.groupby(
        ["task", "temperature"], sort=False, dropna=False
    ):
        metric = str(group["quality_metric"].iloc[0])
        quality, acceptance = shown("quality", metric), shown("acceptance")
        of_first = f"{c.QUALITY_LESS}_reference", f"{c.ACCEPTANCE_LESS}_reference"
        counts = sorted({group["n"].min(), group["n"].max()})
        fields: list[Field[_Row]] = [
            ("method", lambda row: row["label"]),
            ("N", lambda row: number(row["draft_length"] or None, ".0f")),
            (f"{quality.heading}\nA", quality._replace(name=of_first[0]).text),
            ("\nB", quality.text),
            ("B less A\n[95 %]", shown(c.QUALITY_LESS, metric).interval),
            ("accepted /\ndrafted, A", acceptance._replace(name=of_first[1]).text),
            ("\nB", acceptance.text),
            ("B less A\n[95 %]", shown(c.ACCEPTANCE_LESS).interval),
            ("A's s/sample\n/ B's [95 %]", shown(c.TIMES).interval),
            shown(EQUAL).column,
        ]
        title = f"Two runs, paired by sample: {task}, {temperature_text(temperature)}, n = "
        title += " to ".join(map(str, counts))
        notes = [EQUAL_NOTE, TIMES_NOTE] if c.TIMES in set(group["metric"]) else [EQUAL_NOTE]
        yield drop_empty(Table.of(merge_metrics(group), fields, title, notes, stub=2))


def facts_table(differences: Iterable[Sequence[Any]], first: str, second: str) -> Table:
    """Return a table of what differs between two runs: name, first and second value."""
    rows = [
        [name, *(value if isinstance(value, str) else json.dumps(value) for value in values)]
        for name, *values in differences
    ]
    names = ("what differs", f"A: {first}", f"B: {second}")
    return Table("", [Column(name, align="left") for name in names], rows)
