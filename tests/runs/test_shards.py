"""The shards of a run are read as one: nothing that only one of them says is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.runs.run import Run, read_run
from specbench.runs.shards import whole_run

TASK = {"name": "math", "examples": 3, "version": "1"}
GREEDY = {"task": "math", "method": "sd", "alone": "autoregressive", "lossless": True}
NUMBERS = {"texts": 3, "equal": 1, "forks": 2, "beyond": 1, "margins": [0.5]}
CONFIG: dict[str, Any] = {
    "tasks": [TASK],
    "samples_planned": 6,
    "progress": {"state": "complete", "samples": 5, "failed": 1},
}


def shard(folder: Path, *greedy: dict[str, Any], **changes: Any) -> Run:
    folder.mkdir()
    config = {**CONFIG, "pair": {"name": folder.name}, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(json.dumps({"greedy_texts": greedy}))
    return read_run(folder)


def progress(**changes: Any) -> dict[str, Any]:
    return {"progress": {**CONFIG["progress"], **changes}}


# What only one of two shards says differently, and what the whole run then says.
DIFFERENT: dict[str, tuple[dict[str, Any], str, Any]] = {
    "failures": (progress(failed=4), "progress.failed", 5),
    "samples": (progress(samples=2), "progress.samples", 7),
    "state": (progress(state="failed"), "progress.state", "failed"),
    "plan": ({"samples_planned": 2}, "samples_planned", 8),
    "no plan": ({"samples_planned": None}, "samples_planned", 6),
    "no progress": ({"progress": {}}, "progress.state", "unknown"),
    "examples": ({"tasks": [{**TASK, "examples": 2}]}, "tasks.0.examples", 5),
}


@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("name", DIFFERENT)
def test_what_one_shard_says_counts(tmp_path, name, other):
    changes, path, expected = DIFFERENT[name]
    told = [changes if number == other else {} for number in range(2)]
    shards = [shard(tmp_path / str(number), **each) for number, each in enumerate(told)]
    value = whole_run(shards).config.model_dump()
    for key in path.split("."):
        value = value[int(key) if key.isdigit() else key]
    assert value == expected


def test_complete_shards_are_complete(tmp_path):
    shards = [shard(tmp_path / name) for name in "abc"]
    whole = whole_run(shards)
    assert vars(whole.config.progress) == {"state": "complete", "samples": 15, "failed": 3}
    assert (whole.config.samples_planned, whole.tasks["math"].examples) == (18, 9)
    assert (whole.folder, whole.config.pair.name) == (tmp_path / "a", "a")
    assert whole_run(shards[2:]) is shards[2]


@pytest.mark.parametrize("other", [0, 1])
def test_a_task_of_one_shard_is_one_of_the_run(tmp_path, other):
    """The facts of a task are those of the first shard that has it."""
    tasks = [{"tasks": [{**TASK, "version": name}]} for name in "ab"]
    tasks[other]["tasks"].append({"name": "code", "examples": 7})
    whole = whole_run([shard(tmp_path / name, **tasks[name == "b"]) for name in "ab"])
    assert {name: task.examples for name, task in whole.tasks.items()} == {"math": 6, "code": 7}
    assert whole.tasks["math"].version == "a"


def test_greedy_texts_of_all_shards_are_added_up(tmp_path):
    rows = [{**GREEDY, **NUMBERS, **other} for other in ({}, {"method": "other"}, {"task": "code"})]
    alone = {**rows[0], "alone": "server"}
    shards = [shard(tmp_path / "a", rows[0]), shard(tmp_path / "b", *rows, alone)]
    first, *others = (cell.plain() for cell in whole_run(shards).environment.greedy_texts)
    doubled = {"texts": 6, "equal": 2, "forks": 4, "beyond": 2, "margins": [0.5, 0.5]}
    assert first == {**GREEDY, **doubled}
    assert others == [*rows[1:], alone]
