"""Task files: the bundled ones, examples from a generator, and every way a file can be wrong."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from specbench.errors import RunError, UsageError
from specbench.metrics import score
from specbench.tasks import task as task_module
from specbench.tasks.example import Example
from specbench.tasks.task import Task, definitions_folder, load_task, task_names

VALID = """\
name = "toy"
version = "1"
description = "A toy"
licence = "Apache-2.0"
metrics = ["accuracy"]
max_new_tokens = 8
stop = ["\\n"]

[source]
generator = "toy"

[prompt]
template = "Q: {prompt} {x}"
"""


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


def test_bundled_tasks_are_the_four() -> None:
    assert task_names() == ["mini-code", "mini-headline", "mini-math", "mini-news"]


@pytest.mark.parametrize("name", task_names())
@pytest.mark.parametrize("split", ["train", "test"])
def test_bundled_references_score_full_marks(name: str, split: str) -> None:
    task = load_task(name)
    assert task.name == name
    assert task.metric
    for example in task.examples(split, 3):
        assert example.reference
        assert score(task.metric, example.reference, example) == 1.0


@pytest.mark.parametrize("name", task_names())
def test_bundled_examples_do_not_depend_on_how_many_are_asked_for(name: str) -> None:
    task = load_task(name)
    assert task.examples("test", 3) == task.examples("test", 6)[:3]
    assert task.examples("test", 3) != task.examples("test", 3, seed=1)


def test_fields_of_a_task_file(toy: Task, tmp_path: Path) -> None:
    assert toy == Task(
        name="toy",
        version="1",
        description="A toy",
        metrics=("accuracy",),
        stop=("\n",),
        max_new_tokens=8,
        generator="toy",
        path=tmp_path / "toy.toml",
        template="Q: {prompt} {x}",
        licence="Apache-2.0",
    )


def test_template_is_filled_without_touching_other_braces(toy: Task) -> None:
    assert [e.prompt for e in toy.examples("test", 2)] == ["Q: {0} {x}", "Q: {1} {x}"]


def test_seeds_give_disjoint_examples_of_the_split(toy: Task) -> None:
    ids = [[e.id for e in toy.examples("train", 5, seed)] for seed in (0, 1)]
    assert ids[0] == [f"train-{i}" for i in range(5)]
    assert not set(ids[0]) & set(ids[1])


def test_a_generator_without_limit_gives_the_usual_number(toy: Task) -> None:
    assert len(toy.examples("test", None)) == task_module.GENERATED_EXAMPLES


@pytest.mark.parametrize(
    ("split", "limit", "seed", "message"),
    [
        ("validation", 1, 0, "unknown split `validation`; choose one of `train`, `test`"),
        ("test", 0, 0, "limit must be at least 1, not 0"),
        ("test", 1, -1, "seed must be at least 0, not -1"),
    ],
)
def test_impossible_requests(toy: Task, split: str, limit: int, seed: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        toy.examples(split, limit, seed)


def test_unknown_generator_names_the_file(toy: Task, tmp_path: Path) -> None:
    path = written(tmp_path, VALID.replace('generator = "toy"', 'generator = "tpy"'))
    with pytest.raises(UsageError, match=r"toy\.toml: unknown generator `tpy`; .*`toy`"):
        load_task(path).examples("test", 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("licence", "license", "unknown key `license`; did you mean `licence`?"),
        ("licence", "zzz", "unknown key `zzz`; choose one of `name`, `version`"),
        ("[source]", "[sources]", "unknown key `sources.generator`; did you mean `source.gen"),
        ("[prompt]", "[extra]\n[prompt]", "unknown key `extra`"),
        ('metrics = ["accuracy"]', "", "missing key `metrics`"),
        ('[source]\ngenerator = "toy"', "", "missing key `source.generator`"),
        ('"accuracy"', '"acuracy"', "unknown metric `acuracy`"),
        ('["accuracy"]', "[]", "`metrics` must name at least one metric"),
        ('["accuracy"]', "[1]", "`metrics` must be a list of strings"),
        ('version = "1"', "version = 1", "`version` must be a string, not 1"),
        ("= 8", '= "8"', "`max_new_tokens` must be an integer, not '8'"),
        ("= 8", "= true", "`max_new_tokens` must be an integer, not True"),
        ("= 8", "= 0", "`max_new_tokens` must be at least 1, not 0"),
        ('["\\n"]', '"\\n"', "`stop` must be a list of strings"),
        ('["\\n"]', "[1]", "`stop` must be a list of strings"),
        ('["\\n"]', '[""]', "`stop` must be a list of strings that are not empty"),
        ("{prompt}", "{question}", "`prompt.template` must contain `{prompt}`"),
        ("= 8", "=", "not valid TOML: .*line 6"),
    ],
)
def test_wrong_task_files(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in VALID
    with pytest.raises(UsageError, match=message) as caught:
        load_task(written(tmp_path, VALID.replace(old, new, 1)))
    assert str(caught.value).startswith(str(tmp_path / "toy.toml"))
    assert "\n" not in str(caught.value)


def test_task_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_bytes(b"name = \xff")
    with pytest.raises(UsageError, match=r"toy\.toml: not valid TOML"):
        load_task(path)


def test_task_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the task file .*none\.toml: No such file"):
        load_task(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mini-mth", "unknown task `mini-mth`; did you mean `mini-math`?"),
        ("gsm", "unknown task `gsm`; choose one of `mini-code`, `mini-headline`"),
        ("", "unknown task ``"),
    ],
)
def test_unknown_tasks(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
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
