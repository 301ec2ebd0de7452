"""Times of rounds from times of their parts."""

import numpy as np
import pytest

from specbench.theory.formulas import tokens_per_round
from specbench.theory.steps import StepTimes, best_draft_length, fit_steps, seconds_of_text

DRAFT, FIXED, FURTHER = 2.0, 7.0, 0.5
SINGLE = 4.0  # the target's pass over one token; the rest of FIXED is not the target's


def measured(lengths: list[int], rounds: list[float], noise: float = 0.0) -> StepTimes:
    n, counts = np.array(lengths), np.array(rounds)
    verify = SINGLE + FURTHER * n + noise * np.cos(n)
    others = counts[:, None] * np.stack([verify, np.full(len(n), FIXED - SINGLE)], axis=-1)
    return fit_steps(n, counts, counts * n * DRAFT, others, np.array(SINGLE))


@pytest.mark.parametrize("lengths", [[5], [2, 3, 8]])
def test_parts_are_found_from_one_draft_length_or_several(lengths: list[int]) -> None:
    steps = measured(lengths, [10.0] * len(lengths))
    assert (float(steps.draft), float(steps.fixed), float(steps.further)) == pytest.approx(
        (DRAFT, FIXED, FURTHER)
    )
    for n in (1, 5, 20):
        assert steps.round_seconds(n) == pytest.approx(n * DRAFT + FIXED + n * FURTHER)


def test_a_line_follows_the_lengths_with_most_rounds() -> None:
    even, uneven = (measured([2, 3, 8], rounds, noise=0.5) for rounds in ([1, 1, 1], [1, 1, 1e9]))
    right = 8 * (DRAFT + FURTHER) + FIXED + 0.5 * np.cos(8)
    assert uneven.round_seconds(8) == pytest.approx(right)
    assert even.round_seconds(8) != pytest.approx(right)


def test_further_tokens_never_save_time() -> None:
    others = np.array([[10.0, 1.0], [9.0, 1.0]])
    steps = fit_steps(np.array([2, 4]), np.ones(2), np.ones(2), others, np.array(1.0))
    assert float(steps.further) == 0
    assert float(steps.fixed) == pytest.approx(10.5)


def test_the_best_length_is_that_of_least_time() -> None:
    steps = StepTimes(np.array(1.0), np.array(4.0), np.array(0.0))
    acceptance = np.array([[0.9] * 12, [0.05] * 12, [1.0] * 12])
    seconds = seconds_of_text(acceptance, np.full(3, 1e6), np.zeros(3), steps)
    by_hand = [
        1 + int(np.argmax([tokens_per_round(row[:n]) / (4 + n) for n in range(1, 13)]))
        for row in acceptance
    ]
    assert best_draft_length(seconds).tolist() == by_hand
    assert by_hand[1:] == [1, 12]
    assert 1 < by_hand[0] < 12
    assert seconds[0, 2] == pytest.approx(1e6 / tokens_per_round(acceptance[0, :3]) * 7, rel=1e-4)


def test_unknown_times_have_no_best_length() -> None:
    assert np.isnan(best_draft_length(np.full((2, 3), np.nan))).all()
    assert best_draft_length(np.array([np.nan, 3.0, 2.0])) == 3
