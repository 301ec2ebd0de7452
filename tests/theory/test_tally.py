"""What is counted of rounds, by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specbench.errors import UsageError
from specbench.theory.tally import Tally, read_tallies

from .runs import autoregressive, record, write

# Rejected at the third place; all three kept; ended inside by its second accepted draft.
ROUNDS = [(3, (0.9, 0.8, 0.5), 2, 1), (3, (0.9, 0.7, 0.6), 3, 1), (2, (0.4, 0.3), 2, 0)]
OURS: dict[str, Any] = {"draft_length": 3}


def only(folder: Path, *records: Any) -> Tally:
    (tally,) = read_tallies(write(folder, records))
    return tally


def test_sums_by_hand(tmp_path: Path) -> None:
    tally = only(tmp_path, record(ROUNDS, **OURS))
    found = {
        name: tally.sum(name)[0].tolist()
        for name in ("rounds", "judged", "expected", "accepted", "emitted")
    }
    assert found == {
        "rounds": [3],
        "judged": [8],
        "expected": [pytest.approx(5.1)],
        "accepted": [7],
        "emitted": [9],
    }
    assert tally.baseline is None
    assert tally.n == 1


def test_places_count_rounds_that_reach_them_and_have_not_ended(tmp_path: Path) -> None:
    longer = record([(5, (0.9, 0.1), 1, 1)], "a")
    tally = only(tmp_path, record(ROUNDS, **OURS), longer)
    np.testing.assert_allclose(tally.by_place("reached")[0], [[3, 3, 2, 0, 0], [1, 1, 0, 0, 0]])
    np.testing.assert_allclose(
        tally.by_place("expected")[0], [[2.2, 1.8, 1.1, 0, 0], [0.9, 0.1, 0, 0, 0]]
    )
    np.testing.assert_allclose(tally.by_place("accepted")[0], [[3, 3, 1, 0, 0], [1, 0, 0, 0, 0]])
    assert tally.controlled == (False, False)


def test_rounds_that_choose_to_stop_are_known_from_those_that_must(tmp_path: Path) -> None:
    tally = only(tmp_path, record([(2, (0.9, 0.8), 2, 1)], **OURS))
    assert tally.controlled == (True,)
    assert tally.by_place("reached")[0].tolist() == [[1, 1, 1]]


def test_cells_are_resampled_by_the_prompts_that_all_have(tmp_path: Path) -> None:
    samples = [record(ROUNDS, name, **OURS) for name in "abc"]
    tally = only(tmp_path, *samples, *(autoregressive(name, 9) for name in "bcd"))
    assert tally.n == 2
    assert tally.sum("rounds")[0].tolist() == [6, 18]
    assert tally.baseline == 1
    rows = tally.sum("rounds")
    assert (3 * rows[:, 0] == rows[:, 1]).all()


def test_a_sample_made_again_counts_once(tmp_path: Path) -> None:
    first = record([(3, (0.1,), 0, 1)], **OURS)
    failed = {**record([], "b", **OURS), "status": "error", "error": "no"}
    del failed["per_round"]
    made = (first, failed, record(ROUNDS, **OURS))
    tally = only(tmp_path, *(each | {"key": each["sample_id"]} for each in made))
    assert tally.sum("judged")[0].tolist() == [8]


def test_conditions_are_kept_apart(tmp_path: Path) -> None:
    samples = [record(ROUNDS, **OURS), record(ROUNDS, "b", engine="graph", **OURS)]
    tallies = read_tallies(write(tmp_path, samples))
    assert [tally.cells[0]["engine"] for tally in tallies] == ["eager", "graph"]


def test_nothing_to_predict(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run a method that drafts"):
        read_tallies(write(tmp_path, [autoregressive("a", 3)]))
    other = [record(ROUNDS, "a", **OURS), autoregressive("b", 9)]
    with pytest.raises(UsageError, match="no prompt was decoded in every cell"):
        read_tallies(write(tmp_path, other))
