"""Task files: the bundled ones, generated examples, and every possible error in a file."""

from pathlib import Path

import pytest

from specbench.errors import RunError, UsageError
from specbench.tasks import mini
from specbench.tasks import task as task_module
from specbench.tasks.dataset import DataOptions
from specbench.tasks.example import Example

from ..told import DATA
from .files import QUIZ, TOY


def written(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def toy(monkeypatch, tmp_path) -> task_module.Task:
    def numbered(split: str, index: int) -> Example:
        return Example(f"{split}-{index}", f"{{{index}}}")

    monkeypatch.setitem(mini.GENERATORS, "toy", numbered)
    return task_module.load_task(written(tmp_path, TOY.replace("mini-math", "toy")))


def test_bundled_tasks_templates_and_disjoint_examples(toy):
    generated = ["mini-code", "mini-headline", "mini-math", "mini-news"]
    assert task_module.default_task_names() == generated
    assert set(generated) < set(task_module.task_names())
    assert task_module.task_names() == sorted(task_module.task_names())
    assert [e.prompt for e in toy.examples("test", 2)] == ["Q: {0} {x}", "Q: {1} {x}"]
    assert len(toy.examples("test", None)) == task_module.GENERATED_EXAMPLES
    with pytest.raises(UsageError, match=r"^mini-math has no template for few-shot examples"):
        task_module.load_task("mini-math", DataOptions(shots=2))
    assert task_module.load_task("mini-math", DataOptions(shots=0)).name == "mini-math"
    ids = [[e.id for e in toy.examples("train", 5, seed)] for seed in (0, 1)]
    assert ids[0] == [f"train-{i}" for i in range(5)] and not set(ids[0]) & set(ids[1])
    # The range that has always been used to score bundled heads; training seeds cannot reach it.
    held_out = [e.id for e in toy.examples("held-out", 2)]
    assert held_out == ["train-1000000000", "train-1000000001"]
    assert [e.id for e in toy.examples("held-out", 1, seed=1)] == ["train-2000000000"]
    assert task_module.RESERVED_SEEDS * task_module.SEED_STRIDE == 1_000_000_000


@pytest.mark.parametrize("name", ["mini-mth", "squad", ""])
def test_unknown_tasks(name):
    with pytest.raises(UsageError, match=f"unknown task `{name}`.*`(mini-math|gsm8k)`"):
        task_module.load_task(name)


def test_definitions_in_a_wheel_take_precedence_over_a_checkout(monkeypatch, tmp_path):
    package = tmp_path / "specbench" / "tasks"
    assert task_module.definitions_folder(package) == tmp_path / "tasks"
    (package / "definitions").mkdir(parents=True)
    assert task_module.definitions_folder(package) == package / "definitions"
    monkeypatch.setattr(task_module, "definitions_folder", lambda: tmp_path)
    with pytest.raises(RunError, match="no task files in"):
        task_module.task_names()


TEXTS = {"toy": TOY, "quiz": QUIZ, "quiz shots": QUIZ.replace("shot =", "shots = 1\nshot =")}


@pytest.mark.parametrize("line", (DATA / "tasks/wrong.tsv").read_text("utf-8").splitlines())
def test_wrong_task_files(line, tmp_path):
    name, old, new, told = line.replace("⏎", "\n").split("\t")
    text = TEXTS[name]
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1))
    if not told:
        task_module.load_task(path)
        return
    with pytest.raises(UsageError) as caught:
        task_module.load_task(path)
    assert str(caught.value).startswith(f"{path}: ") and told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_problem_of_a_file_is_found(tmp_path):
    text = TOY.replace("version", "versions").replace("= 8", "= 0").replace("accuracy", "x")
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=r"did you mean `version`\? \(and 3 more problems\)$"):
        task_module.load_task(path)
