"""Datasets on the hub, with a fake library, and once with the real one."""

import builtins
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specbench.errors import RunError, UsageError
from specbench.tasks.dataset import DataOptions
from specbench.tasks.task import Task, load_task

from .files import QUIZ, WRITERS, quiz_row, quiz_rows

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Table:
    """The return value of the hub's library: columns, rows, and files in a cache."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])
        self.cache_files = [{"filename": f"cache/{COMMIT}/quiz-test.arrow"}]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


@pytest.fixture
def hub(monkeypatch) -> SimpleNamespace:
    """A fake for the hub's library: ``answer`` is what it returns or raises."""
    fake = SimpleNamespace(asked=[], answer=Table(quiz_rows(30)))

    def load_dataset(*arguments: Any, **named: Any) -> Any:
        fake.asked.append((arguments, named, os.environ.get("HF_DATASETS_OFFLINE")))
        if isinstance(fake.answer, BaseException):
            raise fake.answer
        return fake.answer

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that changes by the code are undone
    return fake


def quiz(folder: Path, at: str = "refs/convert/parquet", **options: Any) -> Task:
    (folder / "quiz.toml").write_text(QUIZ.replace("refs/convert/parquet", at))
    return load_task(folder / "quiz.toml", DataOptions(**options))


def test_the_hub_receives_the_settings_of_the_file_and_another_commit_is_refused(hub, tmp_path):
    task = quiz(tmp_path)
    assert hub.asked == []
    examples = task.examples("test", 3)
    task.examples("test", 5)
    named = {"split": "test", "revision": "refs/convert/parquet"}
    assert hub.asked == [(("somebody/quiz", "main"), named, "")]
    assert [e.id for e in examples] == ["test-0", "test-1", "test-2"]
    data = {"dataset": "somebody/quiz", "config": "main", "revision": "refs/convert/parquet"}
    splits = {"test": {"commit": COMMIT, "rows": 30}}
    assert task.provenance() == data | {"shots": 0, "splits": splits}
    quiz(tmp_path, "v2").examples("train", 1)
    assert hub.asked[1][1] == {"split": "train", "revision": "v2"}
    quiz(tmp_path, COMMIT).examples("test", 1)
    with pytest.raises(RunError, match=f"the cache contains commit {COMMIT}, not {COMMIT[::-1]}"):
        quiz(tmp_path, COMMIT[::-1]).examples("test", 1)


def test_offline_is_set_before_the_library_is_imported(hub, tmp_path, monkeypatch):
    seen, real = [], builtins.__import__

    def spy(name, *rest):
        if name == "datasets":
            seen.append((os.environ["HF_HUB_OFFLINE"], os.environ["HF_DATASETS_OFFLINE"]))
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", spy)
    quiz(tmp_path, offline=True).examples("test", 1)
    assert seen == [("1", "1")]


@pytest.mark.parametrize(
    ("offline", "kind", "told"),
    [(True, UsageError, "not in the cache"), (False, RunError, "cannot be loaded")],
)
def test_a_hub_error_is_one_line(hub, tmp_path, offline, kind, told):
    for error in (ConnectionError, ValueError):
        hub.answer = error("no way.\nReally")
        with pytest.raises(kind, match=rf"^somebody/quiz \(test\) .*{told}.*\(no way\)") as caught:
            quiz(tmp_path, offline=offline).examples("test", 1)
        assert "\n" not in str(caught.value)
    hub.answer = KeyboardInterrupt()  # from the user, not the hub
    with pytest.raises(KeyboardInterrupt):
        quiz(tmp_path, offline=offline).examples("test", 1)


def test_wrong_rows_on_the_hub(hub, tmp_path):
    empty = Table([quiz_row(0)])
    empty.rows = []
    for hub.answer, message in (
        (Table([{"question": "q"}]), r"somebody/quiz test: no `ask` column; .*: `question`"),
        (Table([{**quiz_row(0), "gold": None}]), r"quiz test: row 1: `gold` is empty"),
        (Table([{**quiz_row(0), "ask": "flat"}]), r"quiz test: row 1: no `ask\.de` column"),
        (empty, "quiz has no rows in test"),
    ):
        with pytest.raises(UsageError, match=message):
            quiz(tmp_path).examples("test", 1)


def test_the_hubs_real_library_gives_the_same_rows(tmp_path):
    """A folder of Parquet files loads like a repository of them, without a network."""
    repository = tmp_path / "somebody/quiz"
    repository.mkdir(parents=True)
    for split in ("train", "test"):
        WRITERS[".parquet"](quiz_rows(12, split), repository / f"{split}-00000-of-00001.parquet")
    changed = QUIZ.replace('config = "main"\nrevision = "refs/convert/parquet"\n', "")
    (tmp_path / "quiz.toml").write_text(changed)
    program = (
        "from specbench.tasks.task import load_task\n"
        "task = load_task('quiz.toml')\n"
        "print([e.tests for e in task.examples('test', 2)])\n"
        "print(task.provenance()['splits']['test']['rows'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "[('assert 0', 'assert True', 'run(0)'), ('assert 1', 'assert True', 'run(1)')]",
        "12",
    ], done.stderr
