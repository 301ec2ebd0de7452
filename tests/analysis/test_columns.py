"""The data dictionary says the same as the code, of every column and of nothing else."""

import csv
import re
from pathlib import Path

import specbench.analysis.columns as columns
from specbench.analysis.columns import TABLES, TYPES, Column, dictionary, schema
from specbench.analysis.frames import BLEU_TERMS
from specbench.analysis.summary import METRICS
from specbench.metrics import METRICS as OF_QUALITY

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def of(table: str) -> list[Column]:
    return [column for column in dictionary() if table in column.tables]


def test_metrics_are_those_of_the_summary_with_their_units() -> None:
    known = {column.name: column.unit for column in of(columns.METRICS)}
    assert known == {metric.name: metric.unit for metric in METRICS}
    assert list(known) == [metric.name for metric in METRICS]


def test_what_may_be_measured_is_every_metric_of_quality() -> None:
    assert list(schema(columns.MEASURED)) == [*OF_QUALITY, BLEU_TERMS]


def test_every_entry_is_whole() -> None:
    for column in dictionary():
        assert column.tables, column
        assert set(column.tables) <= set(TABLES), column
        assert re.match(r"\S", column.meaning), column
        assert not column.meaning.endswith("."), column
        kind = TYPES[column.type]
        assert column.example, column
        kind(column.example)
        # A blank cannot be held by a column of integers.
        assert kind is not int or not column.blank, column


def test_every_column_of_a_committed_table_is_known() -> None:
    for table, measured in (("samples", schema(columns.MEASURED)), ("summary", {})):
        with (REFERENCE / f"{table}.csv").open(newline="") as file:
            found = next(csv.reader(file))
        assert set(schema(table)) <= set(found) <= {*schema(table), *measured}
