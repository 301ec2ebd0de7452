"""Task files: every mistake is found, and told with its file and key."""

from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.tasks.definition import Definition
from specbench.tasks.task import load_task
from specbench.validation import load_toml, problems

from .files import QUIZ, TOY

WRONG = [
    ('generator = "mini-math"', "", "`source` names neither a generator nor a dataset"),
    ("generator =", "dataset = 'd'\ngenerator =", "`source` names a generator and also `dataset`"),
    ('"mini-math"', '"mini-maths"', "unknown generator `mini-maths`; did you mean `mini-math`?"),
    ("[prompt]", "[example]\nid = '{a}'\n[prompt]", "`example` goes with a dataset"),
    ("[prompt]", "[prompt]\nshot = '{a}'", "`prompt` has a `shot`, which goes with a dataset"),
    ('"accuracy"', '"acuracy"', "`metrics` has an unknown metric `acuracy`"),
    ('["accuracy"]', '["accuracy", "accuracy"]', "`metrics` names `accuracy` 2 times"),
    ('name = "toy"', 'name = "../toy"', "`name` names files too: keep to letters, digits"),
    ("{prompt}", "{question}", "`prompt` must have `{prompt}` in `template`"),
]
WRONG_DATASET = [
    ('test = "test"', "", "`source` lacks `test`"),
    ('test = "test"', 'test = "test[:9]"', "`source.test` names files too"),
    ('train = "train"', 'train = "test"', "`source` has the same split as `train` and `test`"),
    ('template = "Q', 'template = "Q"\n#', "`prompt` names no column in `template`"),
    ('shot = "Q', 'shot = "Q"\n#', "`prompt.shot` names no column; write one as `{column}`"),
    ('id = "{kind}-{nr}"', 'id = "x"', "`example.id` names no column"),
    ('passage = "{ask.de}"', 'passage = "Q: "', "`example.passage` names no column"),
    ('passage = "{ask.de}"', 'passage = "{gold}"', "`example` has a `passage` that must be a part"),
    ('"{setup}", "{checks}", "run({nr})"', '"setup", "run()"', "`example.tests` names no column"),
    ('shot = "', 'shots = 1\n#"', "`prompt` has `shots` but no `shot`"),
    ('reference = "#### {gold}"', "", "`metrics` has `accuracy`, which needs `example.reference`"),
    ('"{setup}", "{checks}", "run({nr})"', '"import re", "{checks}"', ""),
    ('["accuracy"]', '["pass@1"]', ""),
]


@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [(TOY, *row) for row in WRONG] + [(QUIZ, *row) for row in WRONG_DATASET],
)
def test_wrong_task_files(text: str, old: str, new: str, told: str, tmp_path: Path) -> None:
    assert old in text
    path = tmp_path / "toy.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    if not told:
        load_task(path)
        return
    with pytest.raises(UsageError) as caught:
        load_task(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shots_need_a_training_split(tmp_path: Path) -> None:
    path = tmp_path / "quiz.toml"
    path.write_text(QUIZ.replace('train = "train"\n', "").replace("shot =", "shots = 1\nshot ="))
    with pytest.raises(UsageError, match=r"`prompt` has `shots`, which need `source\.train`"):
        load_task(path)


def test_every_problem_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    text = TOY.replace("licence", "license").replace("= 8", "= 0").replace("accuracy", "x")
    path.write_text(text)
    found = [problem.key for problem in problems(Definition, load_toml(path))]
    assert sorted(found) == ["licence", "license", "max_new_tokens", "metrics"]
    with pytest.raises(UsageError, match=r"did you mean `licence`\? \(and 3 more problems\)$"):
        load_task(path)
