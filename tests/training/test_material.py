"""What a training reads is known before its first step, and what is too long is left out."""

from dataclasses import replace
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.example import Example
from specbench.tasks.task import load_task
from specbench.training.material import Material, Materials, read_materials, readable
from specbench.training.recipe import HeadRecipe

TASK = load_task("mini-headline")
EXAMPLES = [Example(str(i), "x" * length) for i, length in enumerate((3, 9, 1, 12, 4))]


def by_length(example: Example, limit: int = 5) -> list[int]:
    if len(example.prompt) > limit:
        raise UsageError(f"the prompt has {len(example.prompt)} tokens")
    return [len(example.prompt)]


def test_what_cannot_be_read_is_left_out_and_the_rest_keeps_its_order() -> None:
    found = readable(EXAMPLES, by_length, "examples")
    assert [example.id for example in found.examples] == ["0", "2", "4"]
    assert (found.prompts, found.left_out) == ([[3], [1], [4]], 2)


def test_where_most_cannot_be_read_the_first_reason_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        readable(EXAMPLES, lambda example: by_length(example, 2), "train examples of t")
    assert str(caught.value) == (
        "4 of 5 train examples of t cannot be used, the first because the prompt has 3 tokens"
    )


def test_after_the_last_comes_the_first() -> None:
    found = readable(EXAMPLES, by_length, "examples").taken(2, 5)
    assert [example.id for example in found.examples] == ["4", "0", "2", "4", "0"]
    assert found.prompts == [[4], [3], [1], [4], [3]]


def test_every_split_of_a_training_is_read_in_the_order_of_its_task(mini: Any) -> None:
    recipe = HeadRecipe(steps=2, prompts_per_step=3, seed=7)
    found = read_materials(mini, TASK, recipe)
    assert found.train.examples == TASK.examples("train", 6, 7)
    assert found.held_out.examples == TASK.examples("held-out", 256)
    assert found.settling is None
    wished = read_materials(mini, TASK, replace(recipe, target_acceptance=0.9))
    assert wished.settling is not None
    assert wished.settling.examples == TASK.examples("held-out", 256, 1)
    assert found.left_out() == {"train": 0, "held-out": 0}


def test_both_sets_of_held_out_examples_are_counted() -> None:
    parts = [Material([], [], count) for count in (1, 2, 3)]
    assert Materials(*parts).left_out() == {"train": 1, "held-out": 5}
