"""Two runs, paired by sample."""

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.compare import EQUAL, between_runs
from specbench.analysis.compare_tables import between_tables
from specbench.analysis.comparison import ACCEPTANCE_LESS, COMPARISON, QUALITY_LESS, TIMES

from .conftest import Make


@pytest.fixture
def two(make: Make) -> pd.DataFrame:
    """B accepts five more of 25 drafts and is twice as fast; it lacks a prompt and has another."""
    rows = [
        {
            "run_id": run,
            "sample_id": f"p{number:02}",
            "quality": 0.01 * number + (0.1 if run == "B" else 0.0),
            "accepted": 10 + number % 3 + (5 if run == "B" else 0),
            "prefill_seconds": 0.0,
            "decode_seconds": 0.5 if run == "B" else 1.0,
        }
        for run, numbers in (("A", range(20)), ("B", reversed(range(1, 21))))
        for number in numbers
    ]
    return make(*rows)


def figure(rows: pd.DataFrame, metric: str) -> pd.Series:
    (found,) = (row for _, row in rows.iterrows() if row["metric"] == metric)
    return found


def test_samples_are_paired_by_name(two: pd.DataFrame) -> None:
    rows = between_runs(two, times=True)
    assert list(rows) == list(COMPARISON)
    assert set(rows["n"]) == {19}  # prompts that both have
    assert set(rows["run_id"]) == {"B"} and set(rows["against"]) == {"A"}
    for metric, value in ((QUALITY_LESS, 0.1), (ACCEPTANCE_LESS, 0.2), (TIMES, 2.0)):
        ends = figure(rows, metric)[["value", "ci_low", "ci_high"]].astype(float)
        np.testing.assert_allclose(ends, value)  # no width, although prompts differ widely
    assert figure(rows, QUALITY_LESS)["quality"] == pytest.approx(0.2)
    assert figure(rows, QUALITY_LESS)["reference"] == pytest.approx(0.1)
    assert figure(rows, EQUAL)["value"] == 0
    (table,) = between_tables(rows)
    assert [str(cell) for cell in table.rows[0][2:5]] == ["10.0", "20.0", "+10.0 [+10.0, +10.0]"]


def test_times_need_a_request_and_equal_samples_are_counted(two: pd.DataFrame) -> None:
    same = two[two["run_id"] == "A"]
    changed = same.assign(run_id="B").reset_index(drop=True)
    changed.loc[:4, "accepted"] += 1
    rows = between_runs(pd.concat([same, changed]), times=False)
    assert TIMES not in set(rows["metric"])
    assert figure(rows, EQUAL)["value"] == 0.75


@pytest.mark.parametrize(
    "change", [{"draft_length": 3}, {"temperature": 0.5}, {"repeat": 1}, {"task": "other"}]
)
def test_other_cells_and_repeats_are_not_paired(
    two: pd.DataFrame, change: dict[str, float]
) -> None:
    second = two["run_id"] == "B"
    assert between_runs(pd.concat([two[~second], two[second].assign(**change)]), times=True).empty


def test_qualities_of_different_metrics_are_not_subtracted(two: pd.DataFrame) -> None:
    other = two.assign(quality_metric=two["quality_metric"].where(two["run_id"] == "A", "rouge1"))
    for samples, compared in ((two, True), (other, False)):
        assert (QUALITY_LESS in set(between_runs(samples, times=False)["metric"])) is compared
    same = two[two["run_id"] == "A"]
    changed = same.assign(run_id="B", quality_metric="rouge1", quality=0.5)
    rows = between_runs(pd.concat([same, changed]), times=False)
    assert figure(rows, EQUAL)["value"] == 1  # of what can be compared
