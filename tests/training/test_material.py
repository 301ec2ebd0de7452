"""Training data is encoded before the first step, and long prompts are skipped."""

from types import SimpleNamespace
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.task import load_task
from specbench.training import material
from specbench.training.material import Material, Materials, read_material, read_materials
from specbench.training.recipe import HeadRecipe

TASK = load_task("mini-headline")
EXAMPLES = [Example(str(i), "x" * length) for i, length in enumerate((3, 9, 1, 12, 4))]


def test_long_prompts_are_skipped_unless_they_are_the_majority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_length(_: Any, example: Example, __: str, limit: int, *, thinking: bool) -> Any:
        if len(example.prompt) > limit:
            raise UsageError(f"the prompt has {len(example.prompt)} tokens")
        return SimpleNamespace(ids=[len(example.prompt)])

    monkeypatch.setattr(material, "encode_prompt", by_length)
    tokenizer: Any = None
    found = read_material(tokenizer, TASK, EXAMPLES, "train", 5)
    assert [example.id for example in found.examples] == ["0", "2", "4"]
    assert (found.prompts, found.left_out) == ([[3], [1], [4]], 2)
    # After the last comes the first.
    again = found.taken(2, 5)
    assert [example.id for example in again.examples] == ["4", "0", "2", "4", "0"]
    assert again.prompts == [[4], [3], [1], [4], [3]]
    with pytest.raises(UsageError, match=r"4 of 5 train examples of mini-headline .*has 3 tokens"):
        read_material(tokenizer, TASK, EXAMPLES, "train", 2)


def test_every_split_of_a_training_is_read_in_the_order_of_its_task(mini: Any) -> None:
    recipe = HeadRecipe(steps=2, prompts_per_step=3, seed=7)
    found = read_materials(mini, TASK, recipe)
    assert found.train.examples == TASK.examples("train", 6, 7)
    unseen = TASK.examples("held-out", 128 + 256)
    assert found.held_out.examples == unseen[:128]
    assert found.final.examples == unseen[128:]
    assert found.left_out() == {"train": 0, "held-out": 0}
    train, other = (Material([], [], count) for count in (1, 2))
    assert Materials(train, other, other, 5).left_out() == {"train": 1, "held-out": 5}
    other = found.held_out.every(3, 1)
    assert other.examples == unseen[1:128:3]
    assert len(other.prompts) == len(other.examples)


@pytest.mark.parametrize(("prompts", "texts"), [(255, 2), (256, 1)])
def test_a_task_with_few_final_prompts_has_two_texts_of_each(prompts: int, texts: int) -> None:
    nothing, [example] = Material([], []), TASK.examples("held-out", 1)
    final = Material([example] * prompts, [[]] * prompts)
    assert Materials(nothing, nothing, final).final_texts == texts


def test_few_held_out_prompts_serve_both_measurements(
    mini: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material, "FINAL", 100)
    found = read_materials(mini, TASK, HeadRecipe(steps=1, prompts_per_step=1))
    assert found.held_out == found.final
    assert len(found.final.examples) == 128 + 100
