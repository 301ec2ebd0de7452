"""The heads that are shipped are those of the recipe, for the models that are shipped."""

import json
import tomllib

import pytest

from specbench.engine.heads import fingerprints, load_head
from specbench.engine.loading import load_pair
from specbench.pairs.registry import PAIRS_FILE, find_head, get_pair
from specbench.tasks.task import load_task, task_names

RECIPE = tomllib.loads((PAIRS_FILE.parent / "mini" / "recipe.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", task_names())
def test_a_shipped_head_is_the_recipe_s(task):
    description = json.loads((find_head(get_pair("mini"), task) / "head.json").read_text())
    assert description["recipe"] == RECIPE["heads"][task]
    assert description["task"] == task
    assert description["task_version"] == load_task(task).version


def test_shipped_heads_load_and_differ():
    pair = load_pair(get_pair("mini"), "cpu", "float32")
    heads = [load_head(find_head(get_pair("mini"), task), pair) for task in task_names()]
    weights = [head.summary.weight.sum(1).tolist() for head in heads]
    assert len({tuple(row) for row in weights}) == len(task_names())
    assert all(
        json.loads((find_head(get_pair("mini"), task) / "head.json").read_text())["models"]
        == fingerprints(pair)
        for task in task_names()
    )
