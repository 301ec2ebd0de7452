"""Task files: the bundled ones, examples from a generator, and every way a file can be wrong."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from specbench.config import DataOptions
from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.metrics import score
from specbench.tasks import task as task_module
from specbench.tasks.task import (
    RESERVED_SEEDS,
    SEED_STRIDE,
    SPLITS,
    Task,
    default_task_names,
    definitions_folder,
    load_task,
    task_names,
)

from .files import TOY

VALID = TOY.replace("mini-math", "toy")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Task:
    """Load a task whose generator numbers its prompts."""
    stub = ModuleType("specbench.tasks.mini")
    stub.GENERATORS = {"toy": lambda split, i: Example(f"{split}-{i}", f"{{{i}}}")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specbench.tasks.mini", stub)
    return load_task(written(tmp_path, VALID))


def written(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_bundled_tasks_and_those_that_need_no_data() -> None:
    generated = ["mini-code", "mini-headline", "mini-math", "mini-news"]
    stored = ["cnndm", "gsm8k", "humaneval", "mbpp", "wmt16", "xsum"]
    assert default_task_names() == generated
    assert task_names() == sorted(generated + stored)


@pytest.mark.parametrize("name", default_task_names())
def test_bundled_references_score_full_marks(name: str) -> None:
    task = load_task(name)
    assert task.name == name
    assert task.metric
    for split in SPLITS:
        (example,) = task.examples(split, 1)
        assert example.reference
        assert score(task.metric, example.reference, example) == 1.0


def test_template_is_filled_without_touching_other_braces(toy: Task) -> None:
    assert [e.prompt for e in toy.examples("test", 2)] == ["Q: {0} {x}", "Q: {1} {x}"]


def test_seeds_give_disjoint_examples_of_the_split(toy: Task) -> None:
    ids = [[e.id for e in toy.examples("train", 5, seed)] for seed in (0, 1)]
    assert ids[0] == [f"train-{i}" for i in range(5)]
    assert not set(ids[0]) & set(ids[1])


def test_held_out_examples_lie_where_no_training_seed_reaches(toy: Task) -> None:
    held_out = [e.id for e in toy.examples("held-out", 2)]
    # The range that bundled heads have always been scored on.
    assert held_out == ["train-1000000000", "train-1000000001"]
    assert [e.id for e in toy.examples("held-out", 1, seed=1)] == ["train-2000000000"]
    assert RESERVED_SEEDS * SEED_STRIDE == 1_000_000_000


def test_a_generator_without_limit_gives_the_usual_number(toy: Task) -> None:
    assert len(toy.examples("test", None)) == task_module.GENERATED_EXAMPLES


def test_impossible_requests(toy: Task) -> None:
    for split, limit, seed, message in (
        ("validation", 1, 0, "unknown split `validation`"),
        ("test", 0, 0, "limit"),
        ("test", 1, -1, "seed"),
    ):
        with pytest.raises(UsageError, match=message):
            toy.examples(split, limit, seed)


def test_shots_need_a_template(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^mini-math has no template for few-shot examples"):
        load_task("mini-math", DataOptions(shots=2))
    assert load_task("mini-math", DataOptions(shots=0)).generator


@pytest.mark.parametrize("name", ["mini-mth", "squad", ""])
def test_unknown_tasks(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown task `{name}`.*`(mini-math|gsm8k)`"):
        load_task(name)


def test_definitions_of_a_wheel_come_before_those_of_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "specbench" / "tasks"
    assert definitions_folder(package) == tmp_path / "tasks"
    (package / "definitions").mkdir(parents=True)
    assert definitions_folder(package) == package / "definitions"


def test_installation_without_task_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(task_module, "definitions_folder", lambda: tmp_path)
    with pytest.raises(RunError, match=r"no task files in .*; install specbench again"):
        task_names()
