"""Recipes: who has the last word, and what is refused."""

from dataclasses import replace

import pytest

from specbench.errors import UsageError
from specbench.pairs.registry import get_pair
from specbench.tasks.task import load_task
from specbench.training.recipe import HeadRecipe, head_recipe

PAIR, TASK = get_pair("mini"), load_task("mini-math")


def test_the_user_goes_before_the_pair_the_task_and_the_usual() -> None:
    task = replace(TASK, training={"steps": 1, "rollouts": 3, "learning_rate": 0.1})
    pair = replace(PAIR, training={"rollouts": 4, "learning_rate": 0.2})
    recipe = head_recipe(pair, task, {"learning_rate": 0.3, "seed": None})
    usual = HeadRecipe()
    assert (recipe.steps, recipe.rollouts, recipe.learning_rate) == (1, 4, 0.3)
    assert (recipe.seed, recipe.baseline) == (usual.seed, usual.baseline)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "--steps must be 1 or more, not 0"),
        ({"rollouts": 1}, "--rollouts must be 2 or more with the group baseline"),
        ({"rollouts": 1, "prompts_per_step": 1, "baseline": "ema"}, "--rollouts must be 2 or more"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0"),
        ({"acceptance_weight": -1.0}, "--acceptance-weight must be 0 or more"),
        ({"kl_weight": float("inf")}, "--kl-weight must be 0 or more"),
        ({"target_acceptance": 1.0}, "--target-acceptance must be between 0 and 1"),
        ({"initial_weight": 0.0}, "--initial-weight must be between 0 and 1"),
        ({"seed": -1}, "--seed must be from 0 to 999"),
        ({"seed": 1000}, "--seed must be from 0 to 999"),  # held-out examples have that seed
        ({"acceptance_weight": 0.0, "target_acceptance": 0.9}, "above 0 with a target acceptance"),
        ({"head_kind": "cubic"}, "--head-kind must be one of linear, mlp, features"),
        ({"rollout_parts": 0}, "--rollout-parts must be from 1 to the 16 prompts of a step, not 0"),
        ({"rollout_parts": 5, "prompts_per_step": 4}, "from 1 to the 4 prompts of a step, not 5"),
        ({"baseline": "none"}, "--baseline must be one of batch, group, ema"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        head_recipe(PAIR, TASK, values)


def test_one_rollout_is_enough_with_a_running_mean() -> None:
    assert head_recipe(PAIR, TASK, {"rollouts": 1, "baseline": "ema"}).rollouts == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"learning_rate": -1}, "learning_rate: must be above 0, not -1"),
        ({"learning_rte": 1}, "learning_rte: unknown key; did you mean `learning_rate`?"),
        ({"learning_rate": "x"}, "learning_rate: must be a number, not 'x'"),
        ({"steps": 1.5}, "steps: must be an integer, not 1.5"),
        ({"steps": True}, "steps: must be an integer, not True"),
        ({"rollouts": 1}, "rollouts: must be 2 or more with the group baseline, not 1"),
        ({"target_acceptance": 2}, "target_acceptance: must be between 0 and 1, not 2"),
        ({"head_kind": "deep"}, "head_kind: must be one of linear, mlp, features, not deep"),
    ],
)
def test_a_wrong_value_in_a_file_is_named_with_file_and_key(
    values: dict[str, object], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        head_recipe(PAIR, replace(TASK, training=values), {})
    assert str(caught.value) == f"{TASK.path}: training.{told}"
    with pytest.raises(UsageError) as caught:
        head_recipe(replace(PAIR, training=values), TASK, {})
    assert str(caught.value) == f"{PAIR.file}: mini.training.{told}"


def test_a_value_of_a_pair_is_judged_with_those_of_the_task() -> None:
    task = replace(TASK, training={"prompts_per_step": 32})
    assert head_recipe(replace(PAIR, training={"rollout_parts": 32}), task, {}).rollout_parts == 32


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    recipe = HeadRecipe(steps=100, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.2)  # five steps of warm-up
    assert max(rates) == rates[4] < 1
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[50] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0)
