"""Task files: every mistake is found, and told with its file and key."""

from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.tasks.definition import read_definition
from specbench.tasks.task import load_task, task_names

from .files import QUIZ, TOY


def problems(text: str, folder: Path) -> list[str]:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return [str(problem) for problem in read_definition(path)[1]]


@pytest.mark.parametrize("name", task_names())
def test_the_bundled_files_are_called_after_their_tasks(name: str) -> None:
    assert load_task(name).name == name


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("licence", "license", "license: unknown key; did you mean `licence`?"),
        ("licence", "zzz", "zzz: unknown key; choose one of `name`, `version`"),
        ("[source]", "[sources]", "sources.generator: unknown key; did you mean `source.generat"),
        ("[prompt]", "[extra]\n[prompt]", "extra: unknown key; "),
        ("[prompt]", "[example]\nid = '{a}'\n[prompt]", "example.id: unknown key; "),
        ('metrics = ["accuracy"]', "", "metrics: missing; add it"),
        ('generator = "mini-math"', "", "source: names neither a generator nor a dataset; add"),
        ("generator =", "dataset = 'd'\ngenerator =", "source: names both a generator and a data"),
        ('"mini-math"', '"mini-maths"', "source.generator: unknown generator `mini-maths`; did"),
        ('"accuracy"', '"acuracy"', "metrics: unknown metric `acuracy`"),
        ('["accuracy"]', "[]", "metrics: is empty; fill it in"),
        ('["accuracy"]', "[1]", "metrics: must be a list of strings that are not empty"),
        ('version = "1"', "version = 1", "version: must be a string, not 1"),
        ('version = "1"', 'version = ""', "version: is empty; fill it in"),
        ('name = "toy"', 'name = "../toy"', "name: names files too: keep to letters, digits"),
        ('name = "toy"', 'name = "to\\u0000y"', "name: names files too"),
        ("= 8", '= "8"', "max_new_tokens: must be an integer, not '8'"),
        ("= 8", "= true", "max_new_tokens: must be an integer, not True"),
        ("= 8", "= 0", "max_new_tokens: must be at least 1, not 0"),
        ('["\\n"]', '"\\n"', "stop: must be a list of strings, not '\\n'"),
        ('["\\n"]', "[1]", "stop: must be a list of strings that are not empty"),
        ('["\\n"]', '[""]', "stop: must be a list of strings that are not empty"),
        ("{prompt}", "{question}", "prompt.template: must contain `{prompt}`"),
        ("[prompt]", "[prompt]\nformat = 'chats'", "prompt.format: must be one of `chat`, `plain`"),
        ('["accuracy"]', '["accuracy", "accuracy"]', "metrics: names `accuracy` 2 times; once is"),
        ("[prompt]", "training = 3\n[prompt]", "source.training: unknown key; did you mean `trai"),
        ("stop =", "training = 3\nstop =", "training: must be a table, not 3"),
        ("= 8", "=", "not valid TOML: Invalid value (at line 6"),
        ("= 8", f"= {'[' * 5000}", "not valid TOML: nested too deeply"),
        ("= 8", f"= {'9' * 5000}", "not valid TOML: "),
    ],
)
def test_wrong_task_files(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in TOY
    found = problems(TOY.replace(old, new, 1), tmp_path)
    assert [problem for problem in found if problem.startswith(message)], found
    with pytest.raises(UsageError) as caught:
        load_task(tmp_path / "toy.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'toy.toml'}: {found[0]}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('test = "test"', "", "source.test: missing; add it"),
        (
            'dataset = "some',
            'datasets = "some',
            "source.datasets: unknown key; did you mean `sourc",
        ),
        ('test = "test"', 'test = "test[:9]"', "source.test: names files too: keep to letters"),
        ('train = "train"', 'train = "test"', "source.train: is the test split too"),
        ('template = "Q', 'template = "Q"\n#', "prompt.template: names no column; write one as"),
        ('shot = "Q', 'shot = "Q"\n#', "prompt.shot: names no column"),
        ('id = "{kind}-{nr}"', 'id = "x"', "example.id: names no column"),
        ('"#### {gold}"', '"gold"', "example.reference: names no column"),
        ('"def {kind}"', '"def kind"', "example.code_prefix: names no column"),
        ('entry_point = "{kind}"', 'entry_point = "kind"', "example.entry_point: names no column"),
        ('passage = "{ask.de}"', 'passage = "Q: "', "example.passage: names no column"),
        ('"{setup}", "{checks}", "run({nr})"', '"setup", "run()"', "example.tests: names no colu"),
        ('"{setup}", "{checks}", "run({nr})"', '"import re", "{checks}"', None),
        ("[prompt]", "[prompt]\nshots = -1", "prompt.shots: must be at least 0, not -1"),
        ('shot = "', 'shots = 1\n#"', "prompt.shots: needs `prompt.shot`, the template of"),
        ('train = "train"', "train = 3\nprompt.x = 1", "source.train: must be a string, not 3"),
        ('reference = "#### {gold}"', "", "metrics: `accuracy` needs `example.reference`; add it"),
        ('["accuracy"]', '["pass@1"]', None),
        ('passage = "{ask.de}"', 'passage = "{gold}"', "example.passage: must be a part of `prom"),
        ('tests = ["{setup}"', 'tests = [""', "example.tests: must be a list of strings that"),
        ('tests = ["{setup}", "{checks}", "run({nr})"]', "tests = 'x'", "example.tests: must be a"),
    ],
)
def test_wrong_files_of_data_sets(old: str, new: str, message: str | None, tmp_path: Path) -> None:
    assert old in QUIZ
    found = problems(QUIZ.replace(old, new, 1), tmp_path)
    if message is None:
        assert found == []
    else:
        assert [problem for problem in found if problem.startswith(message)], found


def test_every_problem_of_a_file_is_found(tmp_path: Path) -> None:
    text = TOY.replace("licence", "license").replace("= 8", "= 0").replace("accuracy", "x")
    found = problems(text, tmp_path)
    keys = ["license", "licence", "max_new_tokens", "metrics"]
    assert [problem.partition(":")[0] for problem in found] == keys
    with pytest.raises(UsageError, match=r"did you mean `licence`\? \(and 3 more problems\)$"):
        load_task(tmp_path / "toy.toml")


def test_a_task_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_bytes(b"name = \xff")
    with pytest.raises(UsageError, match=r"toy\.toml: not valid TOML"):
        load_task(path)
