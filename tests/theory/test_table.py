"""Predicted and measured agree where the law is known, and wrong predictions do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.theory.formulas import accepted_length
from specbench.theory.table import (
    ACCEPTANCE,
    COLUMNS,
    IID,
    LENGTH,
    MEMORY_BOUND,
    SPEEDUP,
    TOKENS,
    theory_table,
)
from specbench.theory.tally import read_tallies

from .runs import (
    ACCEPTANCE as BY_PLACE,
)
from .runs import (
    PREFILL,
    REST,
    SINGLE,
    autoregressive,
    record,
    round_seconds,
    simulated,
    write,
    write_simulated,
)


def table_of(folder: Path, bytes_ratio: float | None = None) -> pd.DataFrame:
    return theory_table(read_tallies(folder), bytes_ratio)


def row(table: pd.DataFrame, metric: str, n: int = 5) -> Any:
    found = table[(table["metric"] == metric) & (table["draft_length"] == n)]
    (chosen,) = found.to_dict("records")
    return chosen


def agrees(found: Any) -> bool:
    return bool(found["difference_low"] <= 0 <= found["difference_high"])


def test_figures_by_hand(tmp_path: Path) -> None:
    ours: dict[str, Any] = {"draft_length": 3}
    rounds = [(3, (0.9, 0.8, 0.5), 2, 1), (3, (0.9, 0.7, 0.6), 3, 1), (2, (0.4, 0.3), 2, 0)]
    folder = write(tmp_path, [record(rounds, **ours), autoregressive("a", 9)])
    table = table_of(folder, bytes_ratio=0.1)
    assert tuple(table.columns) == COLUMNS

    def sides(metric: str) -> tuple[float, float]:
        found = row(table, metric, 3)
        return found["predicted"], found["measured"]

    tokens = (5.1 + 2) / 3
    seconds = PREFILL + 9 / tokens * round_seconds(3)
    before = PREFILL + 9 * (SINGLE + REST)
    assert sides(ACCEPTANCE) == pytest.approx((5.1 / 8, 7 / 8))
    # The text ended before the third place of its third round: two rounds came so far.
    chances = [2.2 / 3, 1.8 / 3, 1.1 / 2]
    assert sides(LENGTH) == pytest.approx((accepted_length(chances), 1 + 1 + 1 / 2))
    pooled = 7 / 8
    assert sides(IID) == pytest.approx((pooled + pooled**2 + pooled**3, 2.5))
    assert sides(TOKENS) == pytest.approx((tokens, 9 / 3))
    measured = before / (PREFILL + 3 * round_seconds(3))
    assert sides(SPEEDUP) == pytest.approx((before / seconds, measured))
    assert sides(MEMORY_BOUND)[0] == pytest.approx(tokens / 1.3)


@pytest.fixture(scope="module")
def simulated_table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = write_simulated(tmp_path_factory.mktemp("run"), lengths=(2, 5, 8), prompts=150)
    return table_of(folder)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_theory_agrees_with_a_simulation(simulated_table: pd.DataFrame, n: int) -> None:
    exact = accepted_length(BY_PLACE[:n])
    for metric in (ACCEPTANCE, LENGTH, TOKENS, SPEEDUP):
        assert agrees(row(simulated_table, metric, n)), metric
    assert row(simulated_table, LENGTH, n)["predicted"] == pytest.approx(exact, rel=0.01)
    assert row(simulated_table, LENGTH, n)["measured"] == pytest.approx(exact, rel=0.05)


def test_the_iid_formula_does_not(simulated_table: pd.DataFrame) -> None:
    # Acceptance grows within a block: where few places are tried, the mean of all is too high.
    assert not agrees(row(simulated_table, IID, 2))
    assert row(simulated_table, IID, 2)["difference"] < 0


def test_without_autoregressive_there_is_no_speedup(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [record(simulated(rng, BY_PLACE, 5, 40), name) for name in "abc"]
    table = table_of(write(tmp_path, samples))
    assert table.loc[table["metric"] == SPEEDUP, ["predicted", "measured"]].isna().all(axis=None)
    assert row(table, TOKENS)["predicted"] > 1


def test_rounds_of_any_length_have_no_formula_of_one(tmp_path: Path) -> None:
    rounds = [(2, (0.9, 0.8), 2, 1), (5, (0.9, 0.7, 0.6), 2, 1)]
    table = table_of(write(tmp_path, [record(rounds), autoregressive("a", 6)]), 0.1)
    assert set(table["metric"]) == {ACCEPTANCE, LENGTH, TOKENS, SPEEDUP}
    # Of two rounds that accepted two drafts one stopped there.
    predicted = row(table, LENGTH)["predicted"]
    assert predicted == pytest.approx(accepted_length([0.9, 0.75, 0.6 / 2, 0, 0]))
