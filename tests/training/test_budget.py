"""The forecast of a training, and the division of its budget."""

import time
from typing import Any

import pytest

from specbench.training.budget import CHECKS, Pace, Workload, spoken
from specbench.training.recipe import HeadRecipe

PROMPT, STEP, ROW, TOKENS = 2.0, 0.1, 0.01, 100
PACE = Pace(PROMPT, STEP, ROW)
WHOLE = Workload(steps=60, prompts_per_step=16, held_out=128, final=256, final_texts=1)
RECIPE = HeadRecipe()


def test_the_pace_is_found_from_three_timed_roll_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def roll_out(texts: int, tokens: int) -> None:
        clock[0] += PROMPT + (tokens - 1) * (STEP + texts * ROW)

    assert Pace.measured(roll_out) == pytest.approx((PROMPT, STEP, ROW))
    assert clock[0] < 12


def test_seconds_are_those_of_the_texts_and_their_prompts() -> None:
    seconds = WHOLE.seconds(PACE, rollouts=4, tokens=TOKENS)
    # 64 texts of 16 prompts in one batch, 60 times.
    assert seconds["steps"] == pytest.approx(60 * (16 * PROMPT + TOKENS * (STEP + 64 * ROW)))
    # 768 texts of 128 prompts in six batches.
    assert seconds["front"] == pytest.approx(128 * PROMPT + TOKENS * (6 * STEP + 768 * ROW))
    assert seconds["greedy"] == 0
    assert WHOLE._replace(greedy=True).seconds(PACE, 4, TOKENS)["greedy"] > seconds["front"]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("minutes", [40, 60, 120, 200])
def test_a_plan_fits_its_budget_and_uses_most_of_it(minutes: float, greedy: bool) -> None:
    whole = WHOLE._replace(greedy=greedy)
    assert sum(whole.seconds(PACE, 4, TOKENS).values()) > 200 * 60
    workload = whole.within(60 * minutes, PACE, RECIPE, TOKENS)
    seconds = workload.seconds(PACE, 4, TOKENS)
    assert 0.8 * 60 * minutes < sum(seconds.values()) <= 60 * minutes
    assert seconds["front"] <= 0.2 * 60 * minutes and seconds["checks"] <= 0.1 * 60 * minutes
    assert workload.steps >= 20 and 1 <= workload.checks <= CHECKS


def test_more_time_than_needed_changes_nothing() -> None:
    assert WHOLE.within(1e6, PACE, RECIPE, TOKENS) == WHOLE


def test_the_least_plan_fits_its_own_time() -> None:
    least = WHOLE.least()
    assert (least.steps, least.held_out, least.final) == (10, 32, 32)
    seconds = sum(least.seconds(PACE, 4, TOKENS).values())
    workload = WHOLE.within(1.3 * seconds, PACE, RECIPE, TOKENS)
    assert sum(workload.seconds(PACE, 4, TOKENS).values()) <= 1.3 * seconds
    assert workload.held_out >= 32 and workload.final >= 32 and workload.steps >= 10


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (80, "80 s"), (600, "10 min"), (7_200, "2.0 h")],
)
def test_a_duration_is_said_in_its_own_unit(seconds: Any, said: str) -> None:
    assert spoken(seconds) == said
