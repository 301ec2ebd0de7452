"""The bundled heads follow the bundled recipes, for the bundled models."""

import pytest

from specbench.config import Loading
from specbench.decoding.heads.head import fingerprints, load_head
from specbench.decoding.heads.registry import find_head, read_description
from specbench.engine.loading import load_pair
from specbench.engine.pairs import get_pair
from specbench.tasks.task import default_task_names, load_task

MINI = get_pair("mini")


@pytest.mark.parametrize("task", default_task_names())
def test_a_bundled_head_describes_its_task_and_recipe(task):
    """The bundled heads were trained by an earlier recipe, which their descriptions state."""
    description = read_description(find_head(MINI, task).path)
    assert description["recipe"]["head_kind"] == description["kind"] == "linear"
    assert (description["task"], description["pair"]) == (task, "mini")
    assert description["task_version"] == load_task(task).version


def test_bundled_heads_load_and_differ(mini):
    heads = [load_head(find_head(MINI, task).path, mini) for task in default_task_names()]
    weights = [head.summary.weight.sum(1).tolist() for head in heads]
    assert len({tuple(row) for row in weights}) == len(default_task_names())
    for task in default_task_names():
        assert read_description(find_head(MINI, task).path)["models"] == fingerprints(mini)


@pytest.mark.parametrize("task", ["python-line", "python-block", "python-docstring"])
def test_the_heads_of_the_pair_python_follow_its_recipe(task: str) -> None:
    """Their descriptions say that none is better than static weights."""
    pair = get_pair("python")
    path = find_head(pair, task).path
    description = read_description(path)
    assert (description["task"], description["pair"]) == (task, "python")
    assert description["recipe"].items() >= dict(pair.training).items()
    assert description["worth"]["better"] is False
    load_head(path, load_pair(pair, Loading(device="cpu")))
