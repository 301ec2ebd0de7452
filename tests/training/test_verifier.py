"""Training moves a head where it should, and says what it does."""

from dataclasses import replace

import pytest
import torch

from specbench.tasks.task import load_task
from specbench.training import verifier
from specbench.training.material import read_materials, split_material
from specbench.training.parts import here
from specbench.training.recipe import HeadRecipe
from specbench.training.state import new_state, untrained_head
from specbench.training.verifier import held_out_scores, train_head

RECIPE = HeadRecipe(
    steps=4, prompts_per_step=2, rollouts=2, epochs_per_rollout=2, learning_rate=0.1,
    acceptance_weight=5.0, initial_weight=0.5,
)  # fmt: skip
HEADLINE = load_task("mini-headline")


def trained(mini, recipe, task=HEADLINE):
    """The head and the rows of its log."""
    rows = []
    state = new_state(mini, recipe)
    read = read_materials(mini, task, recipe).train
    head = train_head(
        mini, here(mini), task, recipe, read, state, lambda progress, _: rows.append(progress)
    )
    return head, rows


def test_without_reward_training_reaches_for_acceptance(mini, monkeypatch):
    monkeypatch.setattr(verifier, "reward", lambda rollouts, *_: torch.zeros(len(rollouts.texts)))
    head, rows = trained(mini, RECIPE)
    assert [row.step for row in rows] == [1, 2, 3, 4]
    assert rows[0].weight == pytest.approx(0.5)
    assert rows[-1].weight < 0.4
    assert rows[-1].acceptance > rows[0].acceptance
    assert all(row.reward_spread == 0 for row in rows)
    assert not any(weights.requires_grad for weights in head.parameters())


@pytest.mark.parametrize("kind", ["linear", "mlp", "features"])
def test_the_same_recipe_gives_the_same_head(mini, kind):
    recipe = replace(RECIPE, head_kind=kind, steps=2)
    heads = [trained(mini, recipe)[0].state_dict() for _ in range(2)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_the_number_of_parts_decides_the_draws(mini):
    heads = [trained(mini, replace(RECIPE, steps=1, rollout_parts=n))[0] for n in (1, 2)]
    assert not torch.equal(heads[0].summary.weight, heads[1].summary.weight)


def test_the_models_stay_as_they_are(mini):
    before = mini.target.fingerprint(), mini.draft.fingerprint()
    trained(mini, replace(RECIPE, steps=1))
    assert (mini.target.fingerprint(), mini.draft.fingerprint()) == before
    assert all(weights.grad is None for weights in mini.target.model.parameters())


def test_held_out_examples_are_in_no_training(mini, monkeypatch):
    asked = []
    examples = type(HEADLINE).examples

    def spy(task, split, limit, seed=0):
        asked.append((split, seed))
        return examples(task, split, min(limit, 2), seed)

    monkeypatch.setattr(type(HEADLINE), "examples", spy)
    read_materials(mini, HEADLINE, replace(RECIPE, seed=3, target_acceptance=0.9))
    assert asked == [("train", 3), ("held-out", 0), ("held-out", 1)]


def test_a_small_head_trained_from_scratch_raises_reward_and_acceptance(mini):
    """Against the head it started from, the static ensemble with w = 0.9, on held-out examples."""
    recipe = replace(
        RECIPE,
        steps=12,
        prompts_per_step=8,
        rollouts=4,
        epochs_per_rollout=4,
        learning_rate=0.015,
        acceptance_weight=1.0,
        initial_weight=0.9,
    )
    task = load_task("mini-math")
    unseen = split_material(mini, task, "held-out", 64, 0, 512)
    before = held_out_scores(here(mini), task, untrained_head(mini, recipe), unseen)
    head, _ = trained(mini, recipe, task)
    after = held_out_scores(here(mini), task, head, unseen)
    # Four standard errors of a difference: 0.28 in accuracy, 0.025 in acceptance.
    assert after["quality"] > before["quality"] + 0.28
    assert after["acceptance"] > before["acceptance"] + 0.025
