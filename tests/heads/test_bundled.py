"""The bundled heads follow the bundled recipes, for the bundled models."""

import pytest

from specbench.heads.files import fingerprints, load_head, read_description
from specbench.heads.registry import find_head
from specbench.pairs.registry import get_pair
from specbench.tasks.task import default_task_names, load_task
from specbench.training.recipe import head_recipe

MINI = get_pair("mini")


@pytest.mark.parametrize("task", default_task_names())
def test_a_bundled_head_follows_the_recipe(task):
    description = read_description(find_head(MINI, task).path)
    used = {name: v for name, v in description["recipe"].items() if name != "rollout_parts"}
    assert used == head_recipe(MINI, load_task(task), {}).model_dump()
    assert (description["task"], description["pair"]) == (task, "mini")
    assert description["task_version"] == load_task(task).version


def test_bundled_heads_load_and_differ(mini):
    heads = [load_head(find_head(MINI, task).path, mini) for task in default_task_names()]
    weights = [head.summary.weight.sum(1).tolist() for head in heads]
    assert len({tuple(row) for row in weights}) == len(default_task_names())
    for task in default_task_names():
        assert read_description(find_head(MINI, task).path)["models"] == fingerprints(mini)
