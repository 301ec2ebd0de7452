"""A training that is killed or fails loses no finished steps."""

import csv
import errno
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench import files
from specbench.decoding.heads.registry import DESCRIPTION, WEIGHTS, is_head
from specbench.errors import RunError, UsageError
from specbench.runs.labels import LOG
from specbench.tasks.task import Task, load_task
from specbench.training import material, session, verifier
from specbench.training.objective import TrainingStep
from specbench.training.recipe import CHECKPOINT, HeadRecipe, check_folder
from specbench.training.session import carry_out, prepare, start

from .conftest import made_point, measured_by_weight

TASK = replace(load_task("mini-headline"), max_new_tokens=8)
TWO = dict.fromkeys(("steps", "prompts_per_step", "rollouts", "epochs_per_rollout"), 2)
RECIPE = HeadRecipe(**TWO, target_acceptance=0.85)
KIND = {"head_kind": "linear"}
WRITES = 8  # two checkpoints, log and checkpoint of two steps, weights, description
Train = Callable[..., dict[str, Any]]


class Killed(BaseException):
    """A stand-in for a signal that ends the process."""


@pytest.fixture(scope="module")
def train(mini) -> Iterator[Train]:
    def into(folder: Path, report: Any = lambda _: None, **changes: Any) -> dict[str, Any]:
        asked = {"pair": mini, "task": TASK, "recipe": RECIPE, "folder": folder, **changes}
        [description] = carry_out({folder: prepare(**asked)}, lambda _, step: report(step))
        return description

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(material, "HELD_OUT", 10)
        patch.setattr(material, "FINAL", 10)
        patch.setattr(verifier.Training, "measure", measured_by_weight)
        yield into


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    train(folder)
    return folder


@pytest.fixture(scope="module")
def unbroken_seeds(train, unbroken, tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("seed-1")
    train(folder, recipe=RECIPE.updated(seed=1))
    return [unbroken, folder]


def contents(folder: Path) -> dict[str, Any]:
    description = json.loads((folder / DESCRIPTION).read_text())
    rows = list(csv.DictReader((folder / LOG).read_text().splitlines()))
    timed = ("rollout_seconds", "update_seconds")
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "weights": (folder / WEIGHTS).read_bytes(),
        "description": {**description, "seconds": None},
        "rows": [{**row, **dict.fromkeys(timed)} for row in rows],
    }


def step_of_checkpoint(folder: Path) -> Any:
    return torch.load(folder / CHECKPOINT, weights_only=True)["step"]


def test_a_finished_training_leaves_its_log_and_a_head(unbroken):
    left = contents(unbroken)
    assert left["files"] == sorted([DESCRIPTION, WEIGHTS, LOG])
    assert [row["step"] for row in left["rows"]] == ["1", "2"]
    assert tuple(left["rows"][0]) == TrainingStep._fields
    assert not check_folder(unbroken, resume=True)
    with pytest.raises(UsageError, match="already contains a head"):
        check_folder(unbroken, resume=False)


@pytest.mark.parametrize("write", range(1, WRITES + 1))
def test_a_killed_training_resumes_as_if_uninterrupted(train, unbroken, tmp_path, write):
    writes = iter(range(1, WRITES + 1))

    def replaced(source, target):
        if next(writes) == write:
            raise Killed
        os.rename(source, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.os, "replace", replaced)
        train(tmp_path)
    assert not is_head(tmp_path) and check_folder(tmp_path, resume=True)
    seen: list[TrainingStep] = []
    train(tmp_path, seen.append, resume=True)
    assert contents(tmp_path) == contents(unbroken)
    assert [progress.step for progress in seen] == [1, 2]


@pytest.mark.parametrize("write", [2, 3, 4, 7, 8, 11, 15])
def test_heads_that_are_killed_together_resume_as_if_uninterrupted(
    mini, unbroken_seeds, tmp_path, write
):
    """Also between the checkpoints of two heads, or when one is finished."""
    writes = itertools.count(1)
    folders = [tmp_path / "seed-0", tmp_path / "seed-1"]

    def replaced(source, target):
        if next(writes) == write:
            raise Killed
        os.rename(source, target)

    def together(resume: bool) -> None:
        recipes = {f: RECIPE.updated(seed=seed) for seed, f in enumerate(folders)}
        waiting = {f: r for f, r in recipes.items() if check_folder(f, resume)}
        trainings = {f: prepare(mini, TASK, r, f, resume) for f, r in waiting.items()}
        carry_out(trainings, lambda *_: None)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.os, "replace", replaced)
        together(resume=False)
    together(resume=True)
    for folder, alone in zip(folders, unbroken_seeds, strict=True):
        assert contents(folder)["files"] == contents(alone)["files"]
        steps, expected = (contents(each)["rows"] for each in (folder, alone))
        assert [step["tokens"] for step in steps] == [step["tokens"] for step in expected]
        weights, others = (load_file(each / WEIGHTS) for each in (folder, alone))
        torch.testing.assert_close(weights, others)  # but for rounding: batches are others


def test_static_weights_are_measured_once_and_kept(train, unbroken, tmp_path, monkeypatch, caplog):
    measured: list[int] = []
    measure = verifier.Training.measure

    def counted(training, heads, *others):
        measured.append(len(heads))
        return measure(training, heads, *others)

    monkeypatch.setattr(verifier.Training, "measure", counted)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(session, "draw_texts", stop)
        train(tmp_path)
    assert "static weights on 10 of 10 prompts" in caplog.text
    assert measured == [6] and step_of_checkpoint(tmp_path) == 0
    train(tmp_path, resume=True)
    assert 6 not in measured[1:] and contents(tmp_path) == contents(unbroken)


def test_every_batch_of_held_out_prompts_is_kept(train, tmp_path, monkeypatch):
    """With 12 texts at once, two of ten prompts are measured together."""
    monkeypatch.setattr(verifier, "AT_ONCE", 12)
    measure, prompts = verifier.Training.measure, list[int]()

    def counted(training, heads, chosen, *others):
        if len(prompts) == 3:
            raise Killed
        prompts.append(len(chosen.examples))
        return measure(training, heads, chosen, *others)

    with monkeypatch.context() as patch:
        patch.setattr(verifier.Training, "measure", counted)
        with pytest.raises(Killed):
            train(tmp_path)
        assert prompts == [2, 2, 2]
        prompts.clear()
        patch.setattr(session, "draw_texts", stop)
        with pytest.raises(Killed):
            train(tmp_path, resume=True)
    assert prompts == [2, 2]
    stored = torch.load(tmp_path / CHECKPOINT, weights_only=True)["static"]
    assert {len(point["quality"]) for point in stored} == {10}


def test_seeds_and_goals_share_a_front_and_other_recipes_do_not(mini, monkeypatch, tmp_path):
    monkeypatch.setattr(material, "HELD_OUT", 10)
    monkeypatch.setattr(material, "FINAL", 10)
    changes = {"seed": {"seed": 1}, "goal": {"target_acceptance": 0.9}, "kind": KIND}
    recipes = {"first": RECIPE, **{name: RECIPE.updated(**of) for name, of in changes.items()}}
    folders = {name: tmp_path / name for name in recipes}
    trainings = {f: prepare(mini, TASK, recipes[name], f) for name, f in folders.items()}
    first, *others = trainings.values()
    assert [first.shares_front_with(other) for other in others] == [True, True, False]
    assert [t.generator.initial_seed() for t in trainings.values()] == [0, 1, 0, 0]  # draws texts
    alone = prepare(mini, TASK, recipes["seed"], tmp_path)
    alone.measure_front()
    first.measure_front()
    assert [point.lists() for point in first.static] == [point.lists() for point in alone.static]
    trainings.pop(tmp_path / "kind")
    first.static, others[0].static = [], [made_point(1.0, prompts=10)]  # as after a resume
    monkeypatch.setattr(first, "begin", lambda: None)
    start(first, tmp_path / "first", trainings)
    assert all(training.static is others[0].static for training in trainings.values())
    names = sorted(path.parent.name for path in tmp_path.rglob(CHECKPOINT))
    assert names == ["first", "goal"]


@pytest.mark.parametrize("fault", ["disk", "loss"])
def test_a_full_disk_or_nonfinite_loss_keeps_a_step(train, unbroken, tmp_path, monkeypatch, fault):
    seen: list[TrainingStep] = []
    honest = verifier.reward

    def full(path):
        if seen and CHECKPOINT in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def spoilt(*arguments):
        return honest(*arguments) * (float("nan") if seen else 1.0)

    with monkeypatch.context() as patch:
        if fault == "disk":
            patch.setattr("specbench.files.sync", full)
        else:
            patch.setattr(verifier, "reward", spoilt)
        with pytest.raises(RunError, match=r"No space left.*free disk space|is nan at step 2"):
            train(tmp_path, seen.append)
    assert step_of_checkpoint(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [CHECKPOINT, LOG]
    train(tmp_path, resume=True)
    assert contents(tmp_path) == contents(unbroken)


@pytest.mark.usefixtures("train")
def test_a_head_that_cannot_learn_further_does_not_stop_the_others(mini, tmp_path, monkeypatch):
    honest = verifier.Training.learn

    def diverging(training, *texts):
        if training.recipe.seed == 0 and training.history:
            raise RunError("the loss is nan")
        return honest(training, *texts)

    folders = [tmp_path / "seed-0", tmp_path / "seed-1"]
    recipes = {folder: RECIPE.updated(seed=seed) for seed, folder in enumerate(folders)}
    trainings = {folder: prepare(mini, TASK, r, folder) for folder, r in recipes.items()}
    monkeypatch.setattr(verifier.Training, "learn", diverging)
    with pytest.raises(RunError, match="seed-0: the loss is nan"):
        carry_out(trainings, lambda *_: None)
    assert [is_head(folder) for folder in folders] == [False, True]
    assert step_of_checkpoint(folders[0]) == 1


def test_a_refused_training_leaves_nothing(train, tmp_path, monkeypatch):
    alike = made_point(1.0)
    monkeypatch.setattr(verifier.Training, "measure", lambda _, heads, *__: [alike] * len(heads))
    with pytest.raises(UsageError, match="not measurably better"):
        train(tmp_path / "head")
    monkeypatch.setattr(material, "HELD_OUT", 4)
    with pytest.raises(UsageError, match="only 4 held-out prompts"):
        train(tmp_path / "head")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="only 4 held-out prompts"):
        train(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_another_error_keeps_what_was_measured(train, tmp_path, monkeypatch):
    """Such as one of the user's own metric, which can be mended."""
    monkeypatch.setattr(verifier, "AT_ONCE", 12)
    measure = verifier.Training.measure

    def faulty(training, heads, chosen, *others):
        if training.static:
            raise UsageError("mine.py:third failed")
        return measure(training, heads, chosen, *others)

    with monkeypatch.context() as patch:
        patch.setattr(verifier.Training, "measure", faulty)
        with pytest.raises(UsageError, match=r"mine\.py"):
            train(tmp_path)
    stored = torch.load(tmp_path / CHECKPOINT, weights_only=True)["static"]
    assert {len(point["quality"]) for point in stored} == {2}
    train(tmp_path, resume=True)


def stop(progress: TrainingStep) -> None:
    raise Killed


def from_files(**train: Any) -> Task:
    """The task with a provenance, as if its training split had been read."""
    facts = {"dataset": "somebody/quiz", "revision": None, "shots": 4, "splits": {"train": train}}
    source = SimpleNamespace(examples=TASK.source.examples, provenance=lambda: dict(facts))
    return replace(TASK, source=source)  # type: ignore[arg-type]


def test_a_checkpoint_that_is_damaged_or_of_another_training_is_refused(train, tmp_path):
    data = {"file": "here/train.jsonl", "sha256": "a1", "rows": 90}
    with pytest.raises(Killed):
        train(tmp_path, stop, task=from_files(**data))
    with pytest.raises(UsageError, match="add --resume"):
        check_folder(tmp_path, resume=False)
    task = from_files(**data)
    for changes, told in (
        ({"recipe": RECIPE.updated(steps=3)}, "steps 2 instead of 3"),
        ({"recipe": RECIPE.updated(seed=1, **KIND)}, "head_kind features instead of linear"),
        ({"task": replace(task, name="other")}, "name mini-headline instead of other"),
        ({"task": replace(task, version="2")}, "version 1 instead of 2"),
        ({"task": replace(task, prompt_format="plain")}, "prompt_format chat instead of plain"),
        ({"task": from_files(**data | {"sha256": "b2"})}, "train's sha256 a1 instead of b2"),
        ({"task": from_files(**data | {"rows": 91})}, "rows 90 instead of 91"),
        ({"task": replace(task, stop=("\n",))}, "stop "),
        ({"task": replace(task, max_new_tokens=9)}, "tokens of a text 8 instead of 9"),
    ):
        with pytest.raises(UsageError, match=told):
            train(tmp_path, pytest.fail, resume=True, **{"task": task, **changes})
    assert step_of_checkpoint(tmp_path) == 1
    # The same data in another folder.
    moved = data | {"file": "there/train.jsonl"}
    checkpoint = (tmp_path / CHECKPOINT).read_bytes()
    said = train(tmp_path, resume=True, task=from_files(**moved))
    assert said["data"]["splits"] == {"train": moved}
    assert (said["prompt_format"], said["left_out"]) == ("chat", {"train": 0, "held-out": 0})
    assert json.loads((tmp_path / DESCRIPTION).read_text())["data"] == said["data"]
    content = torch.load(io.BytesIO(checkpoint), weights_only=True)
    recipe = {name: value for name, value in content["recipe"].items() if name != "memory"}
    for changed in (
        content | {"recipe": recipe},  # an older version knew no memory
        {name: value for name, value in content.items() if name != "scored"},
        *(content | {"history": [{"step": 1}]}, content | {"head": {}}, content | {"static": [[]]}),
        [1, 2],
    ):
        torch.save(changed, tmp_path / CHECKPOINT)
        with pytest.raises(UsageError, match="is damaged or from another version of specbench"):
            train(tmp_path, pytest.fail, resume=True, task=task)
    (tmp_path / CHECKPOINT).write_bytes(checkpoint[:200])
    with pytest.raises(UsageError, match=r"cannot read .*checkpoint\.pt"):
        train(tmp_path, pytest.fail, resume=True)
