"""Recipes: precedence and errors."""

from dataclasses import replace

import pytest

from specbench.engine.pairs import get_pair
from specbench.errors import UsageError
from specbench.tasks.task import load_task
from specbench.training.recipe import DraftRecipe, HeadRecipe, head_recipe

PAIR, TASK = get_pair("mini"), load_task("mini-math")


def test_the_user_overrides_the_pair_the_task_and_the_defaults() -> None:
    task = replace(TASK, training={"steps": 1, "rollouts": 3, "learning_rate": 0.1})
    pair = replace(PAIR, training={"rollouts": 4, "learning_rate": 0.2})
    recipe = head_recipe(pair, task, {"learning_rate": 0.3, "seed": None})
    assert (recipe.steps, recipe.rollouts, recipe.learning_rate) == (1, 4, 0.3)
    assert recipe.seed == 0


@pytest.mark.parametrize(
    ("values", "key", "what"),
    [
        ({"steps": 0}, "steps", "1 or more"),
        ({"rollouts": 1}, "rollouts", "2 or more"),
        ({"learning_rate": 0.0}, "learning_rate", "above 0"),
        ({"learning_rte": 1}, "learning_rte", "did you mean"),
        ({"initial_weight": 0.0}, "initial_weight", "above 0"),
        ({"seed": 1000}, "seed", "below 1000, not 1000, since seeds from"),
        ({"max_quality_loss": 2, "target_acceptance": 0.9}, "max_quality_loss", "--target-"),
        ({"temperature": []}, "temperature", "is empty"),
        ({"drafter": "prompt-lookup"}, "drafter", "a model or a module"),
        ({"drafter": "mtp", "head_kind": "linear"}, "drafter", "features"),
        ({"head_kind": "cubic"}, "head_kind", "one of `linear`, `features`"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_key_or_its_option(
    values: dict[str, object], key: str, what: str
) -> None:
    plain = replace(TASK, training={})
    for start, pair, task, given in (
        (f"{TASK.path}: `training.{key}`", PAIR, replace(TASK, training=values), {}),
        (f"{PAIR.file}: `mini.training.{key}`", replace(PAIR, training=values), plain, {}),
        (f"--{key.replace('_', '-')}", PAIR, plain, values),
    ):
        if given and key == "learning_rte":
            continue  # there is no such option
        with pytest.raises(UsageError) as caught:
            head_recipe(pair, task, given)
        assert str(caught.value).startswith(start)
        assert what in str(caught.value)


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    for recipe in (
        HeadRecipe(steps=100, learning_rate=1.0),
        DraftRecipe(steps=100, learning_rate=1.0),
    ):
        rates = [recipe.rate(step) for step in range(101)]
        assert rates[0] == pytest.approx(0.2)  # five steps of warm-up
        assert max(rates) == rates[4] < 1
        assert rates[4:] == sorted(rates[4:], reverse=True)
        assert rates[50] == pytest.approx(0.5)
        assert rates[100] == pytest.approx(0)


def test_a_drafts_default_rate_depends_on_its_width() -> None:
    default = {width: DraftRecipe().for_width(width).learning_rate for width in (64, 512, 2048)}
    assert default == {64: 3e-3, 512: 1e-5, 2048: 1e-5}
    assert DraftRecipe(learning_rate=0.5).for_width(64).learning_rate == 0.5
