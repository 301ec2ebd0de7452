"""Recipes, and the examples of a training."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.engine.pairs import get_pair, pairs
from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics import AGREEMENT, get_metric
from specbench.tasks.task import load_task, task_names
from specbench.training import material
from specbench.training.material import Material, Materials, read_material, read_materials
from specbench.training.recipe import HeadRecipe, head_recipe

PAIR, TASK = get_pair("mini"), load_task("mini-math")


def test_the_user_overrides_the_pair_the_task_and_the_defaults():
    task = replace(TASK, training={"steps": 1, "rollouts": 3, "learning_rate": 0.1})
    pair = replace(PAIR, training={"rollouts": 4, "learning_rate": 0.2})
    recipe = head_recipe(pair, task, {"learning_rate": 0.3, "seed": None})
    assert (recipe.steps, recipe.rollouts, recipe.learning_rate) == (1, 4, 0.3)
    assert recipe.seed == 0


def test_every_bundled_pair_and_task_has_a_recipe():
    for pair in pairs().values():
        for task in task_names():
            assert head_recipe(pair, load_task(task), {}).temperature > 0


def test_a_wrong_value_is_named_with_its_file_and_key_or_its_option():
    for values, key, problem in (
        ({"steps": 0}, "steps", "1 or more"),
        ({"rollouts": 0}, "rollouts", "1 or more"),
        ({"prompts_per_step": 1, "rollouts": 1}, "rollouts", "2 or more with one prompt per step"),
        ({"learning_rate": 0.0}, "learning_rate", "above 0"),
        ({"learning_rte": 1}, "learning_rte", "did you mean"),
        ({"initial_weight": 0.0}, "initial_weight", "above 0"),
        ({"seed": 1000}, "seed", "below 1000, not 1000, since seeds from"),
        ({"max_quality_loss": 2, "target_acceptance": 0.9}, "max_quality_loss", "--target-"),
        ({"drafter": "prompt-lookup"}, "drafter", "a model or a module"),
        ({"drafter": "mtp", "head_kind": "linear"}, "drafter", "features"),
        ({"head_kind": "cubic"}, "head_kind", "one of `linear`, `features`"),
    ):
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
            assert str(caught.value).startswith(start) and problem in str(caught.value)


def test_the_learning_rate_warms_up_and_falls_to_zero():
    recipe = HeadRecipe(steps=100, learning_rate=1.0)
    rates = [recipe.rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.2)  # five steps of warm-up
    assert max(rates) == rates[4] < 1
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[50] == pytest.approx(0.5) and rates[100] == pytest.approx(0)


HEADLINE = load_task("mini-headline")
EXAMPLES = [Example(str(i), "x" * length) for i, length in enumerate((3, 9, 1, 12, 4))]


def test_long_prompts_are_skipped_unless_they_are_the_majority(monkeypatch):
    def by_length(_, example, __, limit, *, thinking):
        if len(example.prompt) > limit:
            raise UsageError(f"the prompt has {len(example.prompt)} tokens")
        return SimpleNamespace(ids=[len(example.prompt)])

    monkeypatch.setattr(material, "encode_prompt", by_length)
    tokenizer: Any = None
    training_material = read_material(tokenizer, HEADLINE, EXAMPLES, "train", 5)
    assert [example.id for example in training_material.examples] == ["0", "2", "4"]
    assert (training_material.prompts, training_material.left_out) == ([[3], [1], [4]], 2)
    # After the last comes the first.
    again = training_material.taken(2, 5)
    assert [example.id for example in again.examples] == ["4", "0", "2", "4", "0"]
    assert again.prompts == [[4], [3], [1], [4], [3]]
    with pytest.raises(UsageError, match=r"4 of 5 train examples of mini-headline .*has 3 tokens"):
        read_material(tokenizer, HEADLINE, EXAMPLES, "train", 2)
    with_reference = [replace(example, reference="4") for example in EXAMPLES[1:]]
    for name, left_out in (("accuracy", 1), (AGREEMENT, 0)):  # greedy texts come later
        metric = get_metric(name)
        examples = [EXAMPLES[0], *with_reference]
        read = read_material(tokenizer, HEADLINE, examples, "train", 12, metric=metric)
        assert read.left_out == left_out


def test_every_split_of_a_training_is_read_in_the_order_of_its_task(mini):
    recipe = HeadRecipe(steps=2, prompts_per_step=3, seed=7)
    materials = read_materials(mini, HEADLINE, recipe)
    assert materials.train.examples == HEADLINE.examples("train", 6, 7)
    unseen = HEADLINE.examples("held-out", 128 + 256)
    assert materials.held_out.examples == unseen[:128]
    assert materials.final.examples == unseen[128:]
    assert materials.left_out() == {"train": 0, "held-out": 0}
    for metric, lacks in (("accuracy", "number"), ("pass@1", "`tests`")):
        with pytest.raises(UsageError, match=f"has no {lacks}"):  # before the first text
            read_materials(mini, replace(HEADLINE, metrics=(metric,)), recipe)
    train, other = (Material([], [], count) for count in (1, 2))
    assert Materials(train, other, other, 5).left_out() == {"train": 1, "held-out": 5}


def test_few_held_out_prompts_serve_both_measurements_and_have_two_texts_each(mini, monkeypatch):
    nothing, [example] = Material([], []), HEADLINE.examples("held-out", 1)
    for prompts, texts in ((255, 2), (256, 1)):
        final = Material([example] * prompts, [[]] * prompts)
        assert Materials(nothing, nothing, final).final_texts == texts
    monkeypatch.setattr(material, "FINAL", 100)
    materials = read_materials(mini, HEADLINE, HeadRecipe(steps=1, prompts_per_step=1))
    (size,), recipe = {*map(len, materials.final.prompts)}, HeadRecipe(steps=1, prompts_per_step=1)
    with monkeypatch.context() as patch:  # with room for the text, and not for such prompts
        patch.setattr(mini.draft, "context", recipe.text_tokens(HEADLINE) + size - 1)
        with pytest.raises(
            UsageError, match=f"needs a context of {recipe.text_tokens(HEADLINE) + size}, not"
        ):
            read_materials(mini, HEADLINE, recipe)
    assert materials.held_out == materials.final
    assert len(materials.final.examples) == 128 + 100
