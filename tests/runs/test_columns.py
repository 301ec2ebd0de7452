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


def test_metrics_match_the_code_entries_are_complete_and_committed_columns_known():
    assert [*schema("metrics")] == [*FIGURES]
    optional = list(schema("measured"))
    assert optional[: len(OF_QUALITY)] == [*OF_QUALITY]
    recorded = (BLEU_TERMS, "thought_tokens", "block", *OF_REQUESTS, *OF_PHASES, "timing")
    assert {*recorded} <= {*optional}
    for column in dictionary():
        assert set() < set(column.tables) <= set(TABLES), column
        assert column.meaning.strip(". ") == column.meaning != "", column
        kind = TYPES[column.type]
        # An integer column cannot hold a blank.
        assert kind is not int or not column.blank, column
    for table, measured in (("samples", schema("measured")), ("summary", {})):
        with open_text(stored(REFERENCE / f"{table}.csv")) as file:
            header = next(csv.reader(file))
        assert set(schema(table)) <= set(header) <= {*schema(table), *measured}


BLANK = dict.fromkeys(PARAMETER_COLUMNS)


def cells(*heads: str, task: str = "math") -> list[dict[str, Any]]:
    return [{"method": "diversed", "task": task, **BLANK, "head": head} for head in heads]


HEADS = (
    *("bundled", "results", "bundled results", "bundled out/a", "math x/math", "/heads/mlp"),
    "results/h/x-0.7 results/h/x-0.8",
    "x/a/math x/b/math x/c",  # the ends are equal, so these two need more of the path
    "f/seed-0 f/seed-1 g/seed-0",  # heads of one recipe have names of one length
    "f/seed-0/m f/seed-1/m g/m",  # so do heads that were trained for another task
    "f/seed-0/m f/seed-1/m g/seed-0/m",
)
METHODS: tuple[dict[str, Any], ...] = (
    {"method": "static", "weight": 0.5, "head": float("nan")},
    *({"method": "mentored", "budget": 0.1}, {"method": "typical", "epsilon": 0.09, "delta": 0.3}),
    *({"method": "cactus", "divergence": 1.0}, {"method": "block"}),
    {"method": "sharpened", "target_temperature": 0.6},
    {"method": "gated", "weight": 0.5, "gate": 0.05},
)


def test_methods_and_heads_have_the_shortest_names_and_a_metric_is_shown_as_a_score(stored):
    named = (f"{heads}: {', '.join(method_labels(cells(*heads.split())))}" for heads in HEADS)
    stored(*named, *(method_label(BLANK | cell) for cell in METHODS))
    both = cells("bundled") + cells("results", task="news")  # one row over all tasks
    assert method_labels(both) == ["diversed", "diversed"]
    assert shown("length_ratio").heading == "tokens, ratio"
    assert shown_score("length_ratio").heading == "length_ratio"
    assert shown_score("accuracy") == shown("accuracy")
    assert shown_score("accuracy").number({"accuracy": 0.5}) == "50.0"
