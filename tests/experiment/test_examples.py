"""The examples kept beside a run's answers."""

import json
import os
from pathlib import Path

import pytest

from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.experiment.examples import read_examples, write_examples

FULL = Example("1", 'a "prompt"\n\u2028ü', None, ("assert f()", "x"), "a passage", "def f():", "f")


def test_every_field_survives_the_disk(tmp_path: Path) -> None:
    tasks = {"one": [FULL, Example("2", "p", "r")], "two": [Example("1", "q")]}
    write_examples(tmp_path, tasks)
    assert len((tmp_path / "examples.jsonl").read_bytes().splitlines()) == 3
    assert read_examples(tmp_path) == {
        task: {example.id: example for example in examples} for task, examples in tasks.items()
    }


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        write_examples(tmp_path, {"t": [FULL]})
    assert list(tmp_path.iterdir()) == []


GOOD = {"task": "t", "id": "1", "prompt": "p"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"task": "t", "id": ', "it is not a line of JSON"),
        (b'{"task": "\xff"}', "it is not a line of JSON"),
        (b"[" * 100_000, "it is not a line of JSON"),
        (b"", "it is not a line of JSON"),
        (b"[1]", "it is not an object"),
        (json.dumps({"id": "1", "prompt": "p"}).encode(), "it has no `task`"),
        (json.dumps({"task": "t", "id": "1"}).encode(), "it has no `prompt`"),
        (json.dumps(GOOD | {"answer": "x"}).encode(), "`answer` is unknown"),
        (json.dumps(GOOD | {"id": 1}).encode(), "`id` is of the wrong type"),
        (json.dumps(GOOD | {"task": []}).encode(), "`task` is of the wrong type"),
        (json.dumps(GOOD | {"tests": "assert x"}).encode(), "`tests` is of the wrong type"),
        (json.dumps(GOOD | {"tests": [1]}).encode(), "`tests` is of the wrong type"),
        (json.dumps(GOOD | {"passage": None}).encode(), "`passage` is of the wrong type"),
    ],
)
def test_a_foreign_line_is_located(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "examples.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(UsageError, match=rf"examples\.jsonl, line 2 is no .*\({reason}\)"):
        read_examples(tmp_path)


def test_a_missing_file_says_what_it_is_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no examples\.jsonl"):
        read_examples(tmp_path)
    (tmp_path / "examples.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_examples(tmp_path)
