"""Training improves a head, follows its goal, and keeps the best one."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specbench.tasks.example import Example
from specbench.tasks.metrics import get_metric
from specbench.tasks.task import Task, load_task
from specbench.training import front, material, objective, verifier
from specbench.training.goal import FIRST
from specbench.training.material import Material, Materials, read_materials, split_material
from specbench.training.recipe import HeadRecipe
from specbench.training.rollouts import Rollouts
from specbench.training.verifier import Training, draw_texts

from .conftest import made_point, measured_by_weight

RECIPE = HeadRecipe(
    **{"head_kind": "linear", "steps": 4, "prompts_per_step": 2, "rollouts": 2},
    **{"epochs_per_rollout": 2, "learning_rate": 0.1},
    **{"acceptance_weight": 4.0, "initial_weight": 0.5},
)
CUT = replace(load_task("mini-headline"), max_new_tokens=12)  # to save time
BRIEF = replace(CUT, max_new_tokens=4)  # where what is written does not matter


def prepared(mini: Any, recipe: HeadRecipe, task: Task = CUT, unseen: int = 10) -> Training:
    """A training before its first step, with as many held-out examples."""

    def read(split: str, count: int, seed: int) -> Material:
        return split_material(mini, task, split, count, seed, 512)

    train = read("train", recipe.steps * recipe.prompts_per_step, recipe.seed)
    held_out = (read("held-out", unseen, seed) for seed in (0, 1))
    return Training(mini, task, recipe, Materials(train, *held_out))


def trained(mini: Any, recipe: HeadRecipe, task: Task = CUT) -> Training:
    training = prepared(mini, recipe, task)
    training.begin()
    for _ in range(recipe.steps):
        training.learn(*draw_texts([training])[0])
    return training


@pytest.mark.usefixtures("unmeasured")
def test_without_reward_training_maximises_acceptance(mini, monkeypatch):
    monkeypatch.setattr(verifier, "reward", lambda rollouts, *_: torch.zeros(len(rollouts.texts)))
    before = mini.target.fingerprint(), mini.draft.fingerprint()
    rows = trained(mini, RECIPE).history
    assert [row.step for row in rows] == [1, 2, 3, 4]
    assert rows[0].weight == pytest.approx(0.5) and rows[-1].weight < 0.4
    assert rows[-1].acceptance > rows[0].acceptance
    assert all(row.reward_spread == 0 for row in rows)
    # The models do not change.
    assert (mini.target.fingerprint(), mini.draft.fingerprint()) == before
    assert all(weights.grad is None for weights in mini.target.model.parameters())


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"head_kind": "features"}, [1, 2, 3, 3, 3, 3]),
        ({"head_kind": "features", "memory": 8}, [1, 2, 3, 4, 5, 6]),
        ({"head_kind": "features", "drafter": "greedy"}, [1] * 6),
        ({}, [1] * 6),  # hidden states
    ],
    ids=str,
)
def test_updates_read_the_texts_of_the_last_steps(mini, monkeypatch, changes, expected):
    read: list[int] = []
    honest = objective.surrogate

    def noted(head, start, steps, *others):
        read.append(len(steps))
        step = honest(head, start, steps, *others)
        assert len(step.rollouts.texts) == len(step.advantage) == 4 * len(steps)
        return step

    monkeypatch.setattr(objective, "surrogate", noted)
    recipe = RECIPE.updated(**{"memory": 3, "steps": 6, **changes})
    training = trained(mini, recipe, BRIEF)
    assert read == expected
    # Nothing is kept that is not read.
    assert len(training.scored) == min(expected[-1], training.memory - 1)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("kind", ["linear", "features"])
def test_heads_trained_together_are_those_trained_alone(mini, kind):
    """Batches that they share change nothing, whatever the texts of the others are."""
    recipe = RECIPE.updated(steps=2, head_kind=kind)
    recipes = [recipe.updated(seed=3), recipe.updated(target_acceptance=0.9), recipe]
    together = [prepared(mini, each, BRIEF) for each in recipes]
    for training in together:
        training.begin()
    for _ in range(2):
        for training, texts in zip(together, draw_texts(together), strict=True):
            training.learn(*texts)
    for training, each in zip(together, recipes, strict=True):
        alone = trained(mini, each, BRIEF)
        assert [row.tokens for row in training.history] == [row.tokens for row in alone.history]
        torch.testing.assert_close(training.head.state_dict(), alone.head.state_dict())
    first, second, third = (training.head.state_dict() for training in together)
    for other in (first, second):
        assert not all(torch.equal(other[name], third[name]) for name in third)


def test_a_small_head_trained_from_scratch_raises_reward_and_acceptance(mini):
    """Compared with its start, the static ensemble with w = 0.9, on held-out examples."""
    recipe = RECIPE.updated(
        **{"prompts_per_step": 10, "rollouts": 4, "epochs_per_rollout": 8, "learning_rate": 0.08},
        **{"acceptance_weight": 0.5, "initial_weight": 0.9, "seed": 3, "checks": 1},
    )
    training = prepared(mini, recipe, load_task("mini-math"), unseen=48)
    # With one check, held-out examples choose nothing.
    held_out = training.materials.held_out.taken(0, 10)
    training.materials = training.materials._replace(held_out=held_out)
    # What the target and the draft were measured to do: training follows this slope, and nothing
    # that is measured here.
    slope = ((1.0, 0.9792, 0.78905), (0.0, 0.0417, 1.0))
    target, some = training.static_head(1.0), training.materials.train.taken(0, 8)
    inputs = training.measure([target], some)[0].inputs
    training.static = [front.Point(w, np.full(10, q), np.full(10, a), inputs) for w, q, a in slope]
    training.begin()
    for _ in range(recipe.steps):
        training.learn(*draw_texts([training])[0])
    training.restore_best()
    heads = [training.start, training.head]
    before, after = training.measure(heads, training.materials.final)
    # Four standard errors of a difference: 0.28 in accuracy, 0.025 in acceptance.
    assert after.quality.mean() > before.quality.mean() + 0.28
    assert after.acceptance.mean() > before.acceptance.mean() + 0.025


def test_a_static_weight_is_measured_as_what_it_is(mini):
    """Acceptance is 1 at w = 0; quality and acceptance do not depend on the kind of head."""
    points = []
    for kind in ("linear", "features"):
        training = prepared(mini, RECIPE.updated(head_kind=kind), unseen=4)
        heads = [training.static_head(w) for w in (1, 0)]
        points += training.measure(heads, training.materials.held_out)
    assert [point.weight for point in points] == [1, 0, 1, 0]
    assert points[1].acceptance.tolist() == [1.0] * 4 and (points[0].acceptance < 1).all()
    for one, other in zip(points[:2], points[2:], strict=True):
        assert one.quality.tolist() == other.quality.tolist()
        assert one.acceptance.tolist() == other.acceptance.tolist()


def test_few_held_out_prompts_have_several_texts_each(mini, monkeypatch):
    assert prepared(mini, RECIPE, BRIEF).materials.held_out_texts == material.MOST_TEXTS
    monkeypatch.setattr(material, "HELD_OUT", 20)
    training = prepared(mini, RECIPE, BRIEF)
    asked = []
    measure = Training.measure

    def counted(self, heads, part, *others, **named):
        points = measure(self, heads, part, *others, **named)
        asked.append(sum(point.inputs.tokens for point in points) / len(heads))
        return points

    monkeypatch.setattr(Training, "measure", counted)
    training.measure_front()
    (tokens,) = asked
    assert 10 < tokens <= 2 * 10 * BRIEF.max_new_tokens
    assert [len(point.quality) for point in training.static] == [10] * len(front.WEIGHTS)


def test_texts_are_drawn_at_the_recipes_temperature(mini):
    """Close to 0 they are the target's greedy ones, at a measurement as in a step."""
    task = replace(CUT, metrics=())
    cold = prepared(mini, RECIPE.updated(reward="agreement", temperature=0.01), task)
    cold.begin()
    assert cold.static[0].quality.mean() > 0.99 and cold.learn(*draw_texts([cold])[0]).reward < 0.99


@pytest.mark.usefixtures("unmeasured")
def test_a_text_is_scored_up_to_a_stop_string(mini):
    training = prepared(mini, RECIPE, replace(CUT, stop=("e",)))
    training.begin()
    [(rollouts, *_)] = draw_texts([training])
    ends = [rollouts.token[rollouts.row == text][-1] for text in range(len(rollouts.texts))]
    assert any("e" in mini.tokenizer.decode(end) for end in ends)
    assert not any("e" in text for text in rollouts.texts)


def test_a_point_has_its_prompts_in_order_and_the_mean_of_their_texts(mini, monkeypatch):
    def lengths(rollouts, examples, _):
        return torch.tensor([len(example.prompt) for example in examples]).double()

    monkeypatch.setattr(verifier, "reward", lengths)
    training = prepared(mini, RECIPE, BRIEF)
    held_out = training.materials.held_out
    heads = [training.static_head(weight) for weight in (0.9, 0.1)]
    high, low = training.measure(heads, held_out, texts=2)
    for point in (high, low):
        assert point.quality.tolist() == [len(example.prompt) for example in held_out.examples]
    assert (high.weight, low.weight) == pytest.approx((0.9, 0.1))


def test_a_prompt_that_occurs_twice_is_held_out_once(mini):
    def twice(split: str, count: int, seed: int) -> list[Example]:
        examples = CUT.examples(split, 5, seed)
        return examples + [replace(e, id=f"{e.id} again") for e in examples]

    task = replace(CUT, source=SimpleNamespace(examples=twice))
    materials = read_materials(mini, task, RECIPE)
    ids = [e.id for e in CUT.examples("held-out", 5, 0)]
    assert [e.id for e in materials.held_out.examples] == ids
    assert len(materials.train.examples) == 10


def test_texts_are_scored_as_in_a_run(mini):
    """An unfinished text has no last number, only a stated one."""
    example = Example("e", "How many?", reference="4")
    empty = torch.zeros(0)
    metric = get_metric("accuracy-flexible")
    for cut, scores in (([False, False], [1.0, 1.0]), ([True, True], [0.0, 1.0])):
        rollouts = Rollouts(["2 and 2 are 4", "#### 4"], cut, *[empty] * 6)
        assert verifier.reward(rollouts, [example] * 2, metric).tolist() == scores


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("steps", "checks"), [(4, 6), (6, 6), (10, 6), (11, 6), (17, 6), (9, 1)])
def test_checks_are_spread_over_the_steps_and_no_more_than_planned(mini, steps, checks):
    training = prepared(mini, RECIPE.updated(steps=steps, checks=checks), BRIEF)
    training.begin()
    blank = dict.fromkeys(objective.TrainingStep._fields, 0.0) | {"held_out_quality": None}
    every = [objective.TrainingStep(**blank | {"step": step}) for step in range(1, steps + 1)]
    rows = [training._checked(row) for row in every]
    measured = [row.step for row in rows if row.held_out_quality is not None]
    assert len(measured) == min(steps, checks) and measured[-1] == steps
    gaps = np.diff([0, *measured])
    assert gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize(
    ("changes", "points", "chosen"),
    [
        # The third is furthest above the front, although the last accepts more.
        ({}, ((0.9, 0.8), (0.8, 0.75), (0.5, 0.8), (0.2, 0.5)), 3),
        # 0.85 is the acceptance of w = 0.5.
        ({"target_acceptance": 0.85}, ((0.9, 0.9), (0.51, 0.6), (0.5, 0.65), (0.2, 0.9)), 3),
        # At w = 1 the quality is 0.8: two points less are permitted.
        ({"max_quality_loss": 2.0}, ((0.9, 0.8), (0.6, 0.785), (0.4, 0.77), (0.2, 0.6)), 2),
        ({"max_quality_loss": 2.0}, ((0.9, 0.6), (0.6, 0.7), (0.4, 0.65), (0.2, 0.6)), 2),
    ],
)
def test_the_best_head_is_kept(mini, monkeypatch, changes, points, chosen):
    training = prepared(mini, RECIPE.updated(**changes), BRIEF)
    monkeypatch.setattr(verifier.Training, "measure", measured_by_weight)
    training.begin()
    left = iter(made_point(*point, prompts=10) for point in points)
    monkeypatch.setattr(verifier.Training, "measure", lambda *_: [next(left)])
    states = []
    for _ in range(4):
        training.learn(*draw_texts([training])[0])
        states.append(deepcopy(training.head.state_dict()))
    training.restore_best()
    assert len({tuple(state["summary.bias"].tolist()) for state in states}) == 4
    assert training.best is not None and training.best.step == chosen
    restored = training.head.state_dict()
    assert all(torch.equal(restored[name], states[chosen - 1][name]) for name in restored)


@pytest.mark.usefixtures("unmeasured")
def test_the_start_keeps_most_of_the_quality_and_is_stricter_than_a_goal(mini):
    def first(**changes):
        training = prepared(mini, RECIPE.updated(**{"initial_weight": None, **changes}))
        training.begin()
        return training.start.summary.bias.softmax(0)[1].item()

    # The made quality falls evenly from w = 1 to 0, acceptance rises from 0.7 to 1.
    assert first() == pytest.approx(0.7)
    assert first(target_acceptance=0.76) == pytest.approx(0.9)  # half-way from 0.7
    assert first(target_acceptance=0.99) == pytest.approx(0.7)
    assert first(max_quality_loss=4.0) == pytest.approx(0.9)
    assert first(initial_weight=0.2) == pytest.approx(0.2)


@pytest.mark.usefixtures("unmeasured")
def test_lambda_is_in_units_of_the_static_slope_and_follows_a_goal(mini, monkeypatch):
    def prices(**changes):
        training = trained(mini, RECIPE.updated(**{"steps": 2, **changes}), BRIEF)
        assert training.slope == pytest.approx(0.4 / 0.3)
        return training.history

    assert [row.acceptance_weight for row in prices()] == [4.0] * 2
    low, high = (prices(target_acceptance=a)[1].acceptance_weight for a in (0.71, 0.99))
    assert low < high
    monkeypatch.setattr(verifier, "reward", lambda rollouts, *_: torch.zeros(len(rollouts.texts)))
    (lost,) = prices(max_quality_loss=2.0, steps=1)
    # Below the price of a loss that is just permitted.
    assert lost.acceptance_weight < FIRST


def test_agreement_rewards_the_targets_own_text(mini):
    task = replace(CUT, metrics=())
    training = prepared(mini, RECIPE.updated(reward="agreement"), task)
    train, *others = training.materials
    training.materials = Materials(train._replace(left_out=3), *others)
    training.begin()
    # At T = 1 the target does not always write its likeliest text.
    assert 0.3 < training.static[0].quality.mean() < 1.0
    materials = training.materials
    for part in (materials.train, materials.held_out, materials.final):
        assert all(example.greedy for example in part.examples)
    assert materials.left_out() == {"train": 3, "held-out": 0}
