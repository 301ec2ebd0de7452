"""Predictions match measurements under a known law, and wrong predictions do not."""

from math import isnan, log
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.analysis.theory import (
    ACCEPTANCE,
    COLUMNS,
    LENGTH,
    TOKENS,
    accepted_length,
    theory_table,
    theory_tables,
)
from specbench.analysis.weights import DIVERGENCE, EFFECTIVE, weighted_figures
from specbench.errors import UsageError

from ..synthetic import ACCEPTANCE as BY_PLACE
from ..synthetic import autoregressive, record, write_records, write_simulated

# Rejected at the third position; all three accepted; ended by its second accepted draft.
ROUNDS = [(3, (0.9, 0.8, 0.5), 2, 1), (3, (0.9, 0.7, 0.6), 3, 1), (2, (0.4, 0.3), 2, 0)]
OURS: dict[str, Any] = {"draft_length": 3}


def table_of(folder: Path, *records: Any) -> pd.DataFrame:
    return theory_table(write_records(folder, records))


def row(table: pd.DataFrame, metric: str, n: int = 3) -> Any:
    found = table[(table["metric"] == metric) & (table["draft_length"] == n)]
    (chosen,) = found.to_dict("records")
    return chosen


def sides(table: pd.DataFrame, metric: str) -> tuple[float, float]:
    found = row(table, metric)
    return found["predicted"], found["measured"]


def agrees(found: Any) -> bool:
    return bool(found["difference_low"] <= 0 <= found["difference_high"])


def test_metrics_by_hand(tmp_path: Path) -> None:
    table = table_of(tmp_path, record(ROUNDS, **OURS), autoregressive("a", 9))
    assert tuple(table.columns) == COLUMNS
    tokens = (5.1 + 2) / 3
    assert sides(table, ACCEPTANCE) == pytest.approx((5.1 / 8, 7 / 8))
    # The text ended before the third position of its third round: two rounds reached it.
    chances = [2.2 / 3, 1.8 / 3, 1.1 / 2]
    assert sides(table, LENGTH) == pytest.approx((accepted_length(chances), 1 + 1 + 1 / 2))
    assert sides(table, TOKENS) == pytest.approx((tokens, 9 / 3))
    assert set(table["n"]) == {1}
    samples = [record(ROUNDS, **OURS), record(ROUNDS, "b", engine="graph", **OURS)]
    assert list(table_of(tmp_path, *samples)["engine"].unique()) == ["eager", "graph"]
    with pytest.raises(UsageError, match="run a method that drafts"):
        table_of(tmp_path, autoregressive("a", 3))


def test_a_repeated_sample_counts_once_and_a_failed_one_never(tmp_path: Path) -> None:
    first = record([(3, (0.1,), 0, 1)], **OURS, key="a")
    failed = {**record([], "b", **OURS, key="b"), "status": "error", "error": "no"}
    del failed["per_round"]
    table = table_of(tmp_path, first, failed, record(ROUNDS, **OURS, key="a"))
    assert sides(table, ACCEPTANCE) == pytest.approx((5.1 / 8, 7 / 8))


def test_rounds_may_vary_in_length(tmp_path: Path) -> None:
    rounds = [(2, (0.9, 0.8), 2, 1), (3, (0.9, 0.7, 0.6), 2, 1)]
    adaptive = record(rounds, method="sd-adaptive", cost=0.1, **OURS)
    table = table_of(tmp_path, adaptive)
    assert set(table["metric"]) == {ACCEPTANCE, LENGTH, TOKENS}
    # Of two rounds that accepted two drafts, one stopped there.
    assert row(table, LENGTH)["predicted"] == pytest.approx(accepted_length([0.9, 0.75, 0.3]))


def test_theory_agrees_with_a_simulation(tmp_path: Path) -> None:
    table = theory_table(write_simulated(tmp_path, lengths=(2, 5, 8), prompts=150))
    for n in (2, 5, 8):
        for metric in (ACCEPTANCE, LENGTH, TOKENS):
            assert agrees(row(table, metric, n)), (metric, n)
        exact = accepted_length(BY_PLACE[:n])
        assert row(table, LENGTH, n)["predicted"] == pytest.approx(exact, rel=0.01)
        assert row(table, LENGTH, n)["measured"] == pytest.approx(exact, rel=0.05)


def test_weights_of_few_texts_are_warned_of() -> None:
    cell = {"run_id": "run", "pair": "mini", "task": "task", "method": "static", "session": 0}
    cell |= {"temperature": 1.0, "draft_length": 5, "engine": "eager", "batch_size": 1}
    rows = [
        {**cell, "weight": weight, "metric": EFFECTIVE, "measured": share}
        for weight, share in ((0.5, 0.11), (0.9, 0.27))
    ]
    (table,) = theory_tables(pd.DataFrame(rows, columns=list(COLUMNS)))
    (warning,) = [note for note in table.notes if note.startswith("Warning")]
    assert "samples for static w=0.5: few" in warning


def test_tokens_that_p_excludes_make_the_divergence_infinite() -> None:
    def noted(log_p: float) -> tuple[float, list[str]]:
        laws = {"log_p": [[-1.0, log_p]], "log_law": [[-1.0, -2.0]], "uncovered": [[0.0, 0.0]]}
        text = {"sample_id": "a", "method": "static", "quality": None, "per_round": laws}
        figures = [(name, ours[0]) for name, _, ours in weighted_figures([text], [])]
        cell = {"run_id": "run", "pair": "mini", "task": "task", "method": "static", "session": 0}
        cell |= {"temperature": 1.0, "draft_length": 5, "engine": "eager", "batch_size": 1}
        rows = [{**cell, "weight": 0.5, "metric": name, "measured": x} for name, x in figures]
        (table,) = theory_tables(pd.DataFrame(rows, columns=list(COLUMNS)))
        warnings = [note for note in table.notes if note.startswith("Warning")]
        return dict(figures)[DIVERGENCE], warnings

    divergence, warnings = noted(log(1e-300))
    assert isnan(divergence) and "static w=0.5 emits tokens that p excludes" in warnings[0]
    assert noted(-3.0) == (0.5, [])
