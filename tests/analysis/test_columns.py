"""The data dictionary says the same as the code, of every column and of nothing else."""

import csv
import re
from itertools import pairwise
from pathlib import Path

import pytest

import specbench.analysis.columns as columns
from specbench.analysis.columns import TABLES, TYPES, Column, dictionary, may_be_blank, schema
from specbench.analysis.frames import BLEU_TERMS, CELL, SAMPLES, SUMMARY
from specbench.analysis.summary import METRICS
from specbench.metrics import METRICS as OF_QUALITY

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def of(table: str) -> list[Column]:
    return [column for column in dictionary() if table in column.tables]


def test_tables_start_with_what_they_share() -> None:
    assert list(SUMMARY)[: len(CELL)] == list(CELL)
    assert list(SAMPLES)[: len(CELL)] == list(CELL)
    key = [*CELL, "seed", "repeat", "sample_id"]
    assert list(SAMPLES)[: len(key)] == key
    assert list(schema(columns.ROUNDS))[: len(key)] == key
    shared = set(SAMPLES) & set(SUMMARY)
    assert {name: SAMPLES[name] for name in shared} == {name: SUMMARY[name] for name in shared}


@pytest.mark.parametrize("name", ["samples.csv", "summary.csv"])
def test_every_column_of_a_committed_table_is_known(name: str) -> None:
    table = SAMPLES if name == "samples.csv" else SUMMARY
    with (REFERENCE / name).open(newline="") as file:
        found = next(csv.reader(file))
    measured = schema(columns.MEASURED) if table is SAMPLES else {}
    assert set(table) <= set(found) <= {*table, *measured}


def test_metrics_are_those_of_the_summary_with_their_units() -> None:
    known = {column.name: column.unit for column in of(columns.METRICS)}
    assert known == {metric.name: metric.unit for metric in METRICS}
    assert list(known) == [metric.name for metric in METRICS]


def test_what_may_be_measured_is_every_metric_of_quality() -> None:
    assert list(schema(columns.MEASURED)) == [*OF_QUALITY, BLEU_TERMS]


def test_both_kinds_of_mean_are_labelled() -> None:
    meanings = {column.name: column.meaning for column in of(columns.METRICS)}
    pooled = {name for name, meaning in meanings.items() if meaning.startswith("pooled")}
    for name in ("draft_acceptance_rate", "acceptance_length", "tokens_per_second"):
        assert name in pooled
        assert meanings[f"{name}_sample_mean"].startswith("mean over samples")


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


def test_no_column_is_there_twice() -> None:
    for table in TABLES:
        names = [column.name for column in of(table)]
        assert all(a != b for a, b in pairwise(sorted(names)))


def test_blanks_are_those_of_the_tables_asked_for() -> None:
    assert "accepted" in may_be_blank(columns.SAMPLES)
    assert "accepted" not in may_be_blank(columns.ROUNDS)
    assert "temperature" not in may_be_blank(columns.SAMPLES, columns.SUMMARY)
