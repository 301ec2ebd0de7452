"""Training improves a head, adjusts its multiplier, and calibrates its bias."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.heads.head import Head
from specbench.tasks.task import Task, load_task
from specbench.training import verifier
from specbench.training.material import Material, Materials, split_material
from specbench.training.objective import text_mean
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import roll_out
from specbench.training.verifier import INTEGRAL, PROPORTIONAL, Training, update_multiplier

RECIPE = HeadRecipe(
    steps=4,
    prompts_per_step=2,
    rollouts=2,
    epochs_per_rollout=2,
    learning_rate=0.1,
    acceptance_weight=5.0,
    initial_weight=0.5,
)
CUT = replace(load_task("mini-headline"), max_new_tokens=12)  # to save time


def prepared(mini: Any, recipe: HeadRecipe, task: Task = CUT, unseen: int = 1) -> Training:
    """A training before its first step, with as many held-out examples."""

    def read(split: str, count: int, seed: int) -> Material:
        return split_material(mini, task, split, count, seed, 512)

    count = recipe.steps * recipe.prompts_per_step
    materials = Materials(
        train=read("train", count, recipe.seed),
        held_out=read("held-out", unseen, 0),
        calibration=read("held-out", unseen, 1),
    )
    return Training(mini, task, recipe, materials)


def trained(mini: Any, recipe: HeadRecipe) -> Training:
    training = prepared(mini, recipe)
    for _ in range(recipe.steps):
        training.take_step()
    return training


def test_without_reward_training_maximises_acceptance(mini: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(verifier, "reward", lambda rollouts, *_: torch.zeros(len(rollouts.texts)))
    before = mini.target.fingerprint(), mini.draft.fingerprint()
    rows = trained(mini, RECIPE).history
    assert [row.step for row in rows] == [1, 2, 3, 4]
    assert rows[0].weight == pytest.approx(0.5)
    assert rows[-1].weight < 0.4
    assert rows[-1].acceptance > rows[0].acceptance
    assert all(row.reward_spread == 0 for row in rows)
    # The models do not change.
    assert (mini.target.fingerprint(), mini.draft.fingerprint()) == before
    assert all(weights.grad is None for weights in mini.target.model.parameters())


@pytest.mark.parametrize("kind", ["linear", "mlp", "features"])
def test_the_same_recipe_gives_the_same_head(mini: Any, kind: str) -> None:
    recipe = RECIPE.updated(head_kind=kind, steps=2)
    one, same, other = (
        trained(mini, each).head.state_dict() for each in (recipe, recipe, recipe.updated(seed=1))
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_small_head_trained_from_scratch_raises_reward_and_acceptance(mini: Any) -> None:
    """Compared with its start, the static ensemble with w = 0.9, on held-out examples."""
    recipe = RECIPE.updated(
        steps=4,
        prompts_per_step=10,
        rollouts=4,
        epochs_per_rollout=8,
        learning_rate=0.03,
        acceptance_weight=2.0,
        initial_weight=0.9,
        seed=1,
    )
    training = prepared(mini, recipe, load_task("mini-math"), unseen=48)
    before = training.held_out_scores()
    for _ in range(recipe.steps):
        training.take_step()
    after = training.held_out_scores()
    # Four standard errors of a difference: 0.28 in accuracy, 0.025 in acceptance.
    assert after["quality"] > before["quality"] + 0.28
    assert after["acceptance"] > before["acceptance"] + 0.025


def test_lambda_follows_the_missing_acceptance() -> None:
    multiplier, price = update_multiplier(1.0, 0.1)
    assert math.log(price) == pytest.approx(0.1 * (INTEGRAL + PROPORTIONAL))
    # Missing acceptance accumulates; excess lowers the price at once.
    multiplier, price = update_multiplier(multiplier, 0.0)
    assert math.log(price) == pytest.approx(0.1 * INTEGRAL)
    multiplier, price = update_multiplier(multiplier, -0.1)
    assert 0 < price < multiplier == pytest.approx(1.0)


def uneven(mini: Any, target: float, texts: int) -> Training:
    """A training for a target acceptance, with a head that trusts positions unevenly."""
    recipe = RECIPE.updated(target_acceptance=target)
    training = prepared(mini, recipe, unseen=texts)
    training.head.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    weight = training.head.summary.weight
    weight.copy_(torch.randn(weight.shape, generator=generator) / 8)
    return training


def acceptance(mini: Any, head: Head, texts: int) -> float:
    """On examples that were not used for calibration."""
    prompts = split_material(mini, CUT, "train", texts, 7, 512).prompts
    generator = torch.Generator().manual_seed(7)
    rollouts = roll_out(mini, head, prompts, CUT.max_new_tokens, generator)
    return text_mean(1 - head(rollouts.inputs) * rollouts.tv, rollouts).mean().item()


def test_calibrating_the_bias_reaches_the_target_on_other_examples(mini: Any) -> None:
    training = uneven(mini, 0.86, 48)
    head, before = training.head, deepcopy(training.head)
    assert abs(acceptance(mini, head, 48) - 0.86) > 0.03
    training.calibrate_bias()
    assert acceptance(mini, head, 48) == pytest.approx(0.86, abs=0.02)
    assert torch.equal(head.summary.weight, before.summary.weight)
    assert head.summary.bias[0] == before.summary.bias[0]


def test_an_unreachable_target_gives_the_strictest_head(mini: Any) -> None:
    training = uneven(mini, 0.3, 8)
    training.calibrate_bias()
    strict = Head("linear", (mini.target.hidden_size, mini.draft.hidden_size), 1 - 1e-6)
    found, wanted = (acceptance(mini, head, 8) for head in (training.head, strict))
    assert found == pytest.approx(wanted, abs=1e-3)
