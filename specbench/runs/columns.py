"""The data dictionary: every column of every table, read from ``columns.csv`` beside this module.

It is the only place that defines a column's type and whether it may be blank; the schemas of
``runs.frames`` are built from it. Metrics declare their own columns. Nothing here imports pandas,
which keeps the command line fast.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from specbench.tasks.metrics import METRICS as QUALITY_METRICS
from specbench.tasks.metrics.metric import Metric

TYPES: dict[str, type] = {"text": str, "number": float, "integer": int}
#: Groups of columns: those of each table, the optional metric columns of samples (``measured``),
#: and the metrics of a summary, which become columns in the wide table.
TABLES = SAMPLES, MEASURED, SUMMARY, METRICS, ROUNDS, POSITIONS, RUNS = (
    *("samples", "measured", "summary", "metrics", "rounds", "positions", "runs"),
)

#: Why a sample was decoded again for its times only (column ``timing``): as the baseline of cells
#: that were added to the run later, or to measure timing noise (an A/A test).
TIMED = TIMED_BASELINE, TIMED_AGAIN = "baseline", "a-a"

#: A sample's terms of corpus BLEU: ten integers separated by spaces.
BLEU_TERMS = "bleu_terms"
SAME_PROMPT = "same_prompt_as"  # column of samples whose prompt an earlier example has
THOUGHT_TOKENS = "thought_tokens"  # column of samples; also in their records


class ColumnMeaning(NamedTuple):
    """A column of one or more tables.

    Whole numbers that may be blank have the type ``number``, which is a float. ``blank`` says when
    a value is blank; it is empty if no value can be. Of a column with a ``heading``, tables show
    the mean over all texts, in which a blank counts as 0.
    """

    tables: tuple[str, ...]
    name: str
    type: str
    unit: str
    meaning: str
    blank: str
    example: str
    heading: str = ""


@cache
def dictionary() -> tuple[ColumnMeaning, ...]:
    """Return all columns, those of each table in order."""
    path = Path(__file__).with_suffix(".csv")
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    listed = [ColumnMeaning(tuple(tables.split()), *values) for tables, *values in rows]
    further = next(i for i, column in enumerate(listed) if MEASURED in column.tables)
    metrics = map(_of_metric, QUALITY_METRICS.values())
    return (*listed[:further], *metrics, *listed[further:])


def _of_metric(metric: Metric) -> ColumnMeaning:
    """Return the column of a metric's scores."""
    score = (metric.name, "number", "fraction", metric.meaning)
    return ColumnMeaning((MEASURED,), *score, blank="not scored by this metric", example="1.0")


def schema(table: str) -> dict[str, type]:
    """Return the columns of a table in order, with the Python types of their values."""
    return {column.name: TYPES[column.type] for column in dictionary() if table in column.tables}


def may_be_blank(*tables: str) -> frozenset[str]:
    """Return the names of the columns of these tables that may be blank."""
    return frozenset(c.name for c in dictionary() if c.blank and not {*tables}.isdisjoint(c.tables))
