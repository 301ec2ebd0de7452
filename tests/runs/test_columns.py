"""The data dictionary matches the code: every column, and no others."""

import csv
from pathlib import Path

import specbench.runs.columns as columns
from specbench.analysis.summary import FIGURES
from specbench.files import open_text, stored
from specbench.runs.columns import BLEU_TERMS, TABLES, TYPES, dictionary, schema
from specbench.tasks.metrics import METRICS as OF_QUALITY

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


OF_REQUESTS = (
    *("first_token_seconds", "inter_token_seconds", "retries", "refused"),
    *("delivered_bytes", "contradictions", "options_refused"),
)


def test_metrics_match_the_code() -> None:
    assert [c.name for c in dictionary() if columns.METRICS in c.tables] == [*FIGURES]
    assert list(schema(columns.MEASURED)) == [
        *OF_QUALITY,
        BLEU_TERMS,
        *("thought_tokens", "block"),
        *OF_REQUESTS,
        *("inside_emitted", "inside_proposed", "inside_accepted"),
        "timing",
    ]


def test_every_entry_is_complete() -> None:
    for column in dictionary():
        assert set() < set(column.tables) <= set(TABLES), column
        assert column.meaning.strip(". ") == column.meaning != "", column
        kind = TYPES[column.type]
        assert str(kind(column.example)) != "", column
        # An integer column cannot hold a blank.
        assert kind is not int or not column.blank, column


def test_every_column_of_a_committed_table_is_known() -> None:
    for table, measured in (("samples", schema(columns.MEASURED)), ("summary", {})):
        with open_text(stored(REFERENCE / f"{table}.csv")) as file:
            found = next(csv.reader(file))
        assert set(schema(table)) <= set(found) <= {*schema(table), *measured}
