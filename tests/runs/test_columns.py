"""The data dictionary matches the code; labels of methods and headings of columns."""

import csv
from pathlib import Path
from typing import Any

from specbench.analysis.statistics.summary import FIGURES
from specbench.analysis.tables.shown import shown, shown_score
from specbench.files import open_text, stored
from specbench.methods.registry import PARAMETER_COLUMNS
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.labels import method_label, method_labels
from specbench.runs.tables import TABLES, TYPES, dictionary, schema
from specbench.tasks.metrics import METRICS as OF_QUALITY

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


OF_REQUESTS = (
    *("first_token_seconds", "inter_token_seconds", "retries", "refused"),
    *("delivered_bytes", "contradictions", "options_refused"),
)
OF_PHASES = ("inside_emitted", "inside_proposed", "inside_accepted")


def test_metrics_match_the_code():
    assert [*schema("metrics")] == [*FIGURES]
    optional = list(schema("measured"))
    assert optional[: len(OF_QUALITY)] == [*OF_QUALITY]
    recorded = (BLEU_TERMS, "thought_tokens", "block", *OF_REQUESTS, *OF_PHASES, "timing")
    assert {*recorded} <= {*optional}


def test_every_entry_is_complete():
    for column in dictionary():
        assert set() < set(column.tables) <= set(TABLES), column
        assert column.meaning.strip(". ") == column.meaning != "", column
        kind = TYPES[column.type]
        # An integer column cannot hold a blank.
        assert kind is not int or not column.blank, column


def test_every_column_of_a_committed_table_is_known():
    for table, measured in (("samples", schema("measured")), ("summary", {})):
        with open_text(stored(REFERENCE / f"{table}.csv")) as file:
            header = next(csv.reader(file))
        assert set(schema(table)) <= set(header) <= {*schema(table), *measured}


BLANK = dict.fromkeys(PARAMETER_COLUMNS)


def cells(*heads: str, task: str = "math") -> list[dict[str, Any]]:
    return [{"method": "diversed", "task": task, **BLANK, "head": head} for head in heads]


def test_heads_have_the_shortest_unambiguous_names():
    for heads, labels in (
        ("bundled", "diversed"),
        ("results", "diversed"),
        ("bundled results", "diversed bundled, diversed results"),
        ("bundled out/a", "diversed, diversed a"),
        ("results/h/x-0.7 results/h/x-0.8", "diversed x-0.7, diversed x-0.8"),
        # The ends are equal, so these two need more of the path.
        ("x/a/math x/b/math x/c", "diversed a/math, diversed b/math, diversed c"),
        ("math x/math", "diversed math, diversed x/math"),
        ("/heads/mlp", "diversed mlp"),
        # Heads of one recipe have names of one length.
        ("f/seed-0 f/seed-1 g/seed-0", "diversed f/seed-0, diversed f/seed-1, diversed g/seed-0"),
        # So do heads that were trained for another task.
        ("f/seed-0/m f/seed-1/m g/m", "diversed seed-0/m, diversed seed-1/m, diversed g/m"),
        (
            "f/seed-0/m f/seed-1/m g/seed-0/m",
            "diversed f/seed-0/m, diversed f/seed-1/m, diversed g/seed-0/m",
        ),
    ):
        assert ", ".join(method_labels(cells(*heads.split()))) == labels


def test_an_automatic_head_is_one_row_over_all_tasks():
    both = cells("bundled") + cells("results", task="news")
    assert method_labels(both) == ["diversed", "diversed"]


def test_methods_name_their_parameters():
    for cell, label in (
        ({"method": "static", "weight": 0.5, "head": float("nan")}, "static w=0.5"),
        ({"method": "mentored", "budget": 0.1}, "mentored D=0.1"),
        ({"method": "typical", "epsilon": 0.09, "delta": 0.3}, "typical ε=0.09 δ=0.3"),
        ({"method": "cactus", "divergence": 1.0}, "cactus d=1"),
        ({"method": "sharpened", "target_temperature": 0.6}, "sharpened t=0.6"),
        ({"method": "gated", "weight": 0.5, "gate": 0.05}, "gated g=0.05 w=0.5"),
        ({"method": "gated-diversed", "gate": 0.1, "head": "x"}, "gated-diversed g=0.1 x"),
        ({"method": "block"}, "block"),
    ):
        assert method_label(BLANK | cell) == label


def test_a_metric_with_the_name_of_a_figure_is_shown_as_a_score():
    assert shown("length_ratio").heading == "tokens, ratio"
    assert shown_score("length_ratio").heading == "length_ratio"
    assert shown_score("accuracy") == shown("accuracy")
    assert shown_score("accuracy").number({"accuracy": 0.5}) == "50.0"
