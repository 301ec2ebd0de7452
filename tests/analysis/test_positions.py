"""Acceptance by position: counts by hand, the pooled rates, clusters of rounds."""

from pathlib import Path

import pandas as pd
import pytest

import specbench
from specbench.analysis.results import (
    CONDITIONAL,
    MARGINAL,
    acceptance_by_position,
    position_tables,
)
from specbench.errors import UsageError
from specbench.runs import columns
from specbench.runs.columns import schema
from specbench.runs.table import to_text

from .figures.made import rounds_of

RESULTS = Path(__file__).parents[2] / "results"


def shares(table: pd.DataFrame, kind: str) -> list[tuple[int, int, float]]:
    rows = table[table["kind"] == kind]
    return list(zip(rows["position"], rows["rounds"], rows["value"], strict=True))


def test_by_hand_without_drafts_after_the_end_of_a_text():
    rounds = rounds_of({"sd": [[3, 0, 1], [2, 1]], "autoregressive": [[0, 0]]}).rounds
    rounds.loc[rounds["method"] == "autoregressive", "proposed"] = 0
    rounds.loc[4, "proposed"] = 1  # the last text ended with the draft that was accepted
    table = acceptance_by_position(rounds)
    assert list(table) == list(schema(columns.POSITIONS))
    assert shares(table, MARGINAL) == [(1, 5, 0.8), (2, 4, 0.5), (3, 4, 0.25)]
    assert shares(table, CONDITIONAL) == [(1, 5, 0.8), (2, 3, 2 / 3), (3, 2, 0.5)]
    with pytest.raises(UsageError, match="drafts"):
        acceptance_by_position(rounds[rounds["method"] == "autoregressive"])


def test_positions_pool_to_the_rates_of_the_summary():
    found = specbench.load(RESULTS / "reference-verifiers-math")  # sd-adaptive varies its length
    table = found.positions.assign(accepted=lambda t: t["value"] * t["rounds"])
    names = ["method", "settings", "weight", "target_temperature", "kind"]
    pooled = table.groupby(names, dropna=False)[["accepted", "rounds"]].sum()
    pooled = (pooled["accepted"] / pooled["rounds"]).unstack()
    cells = found.cells.set_index(names[:-1])
    for kind, metric in (
        (MARGINAL, "draft_acceptance_rate"),
        (CONDITIONAL, "conditional_acceptance_rate"),
    ):
        expected = cells[metric].dropna().sort_index()
        assert len(expected) == len(pooled) > 20
        assert pooled[kind].to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-9)
    control = (pooled[MARGINAL] - pooled[CONDITIONAL]).abs()
    assert (control > 0.01).sum() == len(pooled) - 1  # w = 0 accepts all


def test_rounds_of_a_prompt_are_one_cluster():
    """Copies of each prompt's rounds carry no news of other prompts."""
    own = [[i % 4, (i * 7) % 4] for i in range(40)]
    few, many = (
        acceptance_by_position(rounds_of({"sd": [sample * k for sample in own]}).rounds)
        for k in (1, 25)
    )
    width, same = (table["ci_high"] - table["ci_low"] for table in (few, many))
    independent = acceptance_by_position(rounds_of({"sd": own * 25}).rounds)
    assert (same > 0.6 * width).all()
    narrow = (independent["ci_high"] - independent["ci_low"])[width > 0.05]
    assert (narrow < 0.3 * width[width > 0.05]).all()
    assert independent["n"].max() == 1000 and many["n"].max() == 40


def test_the_table_fits_80_columns_and_shows_intervals_on_request():
    results = rounds_of({m: [[3, 0, 1], [2, 1]] * 10 for m in ("sd", "diversed")})
    (plain,) = position_tables(results.positions)
    (told,) = position_tables(results.positions, intervals=True)
    assert [len(table.rows) for table in (plain, told)] == [4, 4]
    assert not any(cell.interval for cell in plain.rows[0][2:])
    assert all(cell.interval for cell in told.rows[0][2:])
    assert max(map(len, to_text(told, width=80).splitlines())) <= 80
