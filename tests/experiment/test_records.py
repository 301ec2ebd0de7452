"""JSON Lines files: recovery after a crash, and errors."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specbench.errors import RunError, UsageError
from specbench.example import Example
from specbench.experiment.records import (
    RECORDS,
    cut_torn_line,
    read_examples,
    read_records,
    to_line,
    write_examples,
)

FULL = Example("1", 'a "prompt"\n\u2028ü', None, ("assert f()", "x"), "a passage", "def f():", "f")
RECORD = {"key": "k", "place": 0, "run_id": "r", "status": "ok", "task": "t", "sample_id": "1"}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.text(), min_size=1, max_size=4), cut=st.floats(0, 1))
def test_a_file_cut_anywhere_keeps_its_complete_lines_and_can_grow(
    tmp_path: Path, texts: list[str], cut: float
) -> None:
    path = tmp_path / "samples.jsonl"
    content = b"".join(to_line({**RECORD, "text": text}) for text in texts)
    content = content[: round(cut * len(content))]
    path.write_bytes(content)
    whole = texts[: content.count(b"\n")]
    assert [r["text"] for r in read_records(tmp_path)] == whole
    cut_torn_line(tmp_path / RECORDS)
    with path.open("ab") as file:
        file.write(to_line({**RECORD, "text": "next"}))
    assert [r["text"] for r in read_records(tmp_path)] == [*whole, "next"]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=st.binary().filter(lambda line: b"\n" not in line))
def test_foreign_bytes_are_one_located_error(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "samples.jsonl").write_bytes(to_line(RECORD) + line + b"\n")
    with pytest.raises(UsageError, match=r"samples\.jsonl, line 2, is not a sample"):
        list(read_records(tmp_path))
    (tmp_path / "examples.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UsageError, match=r"examples\.jsonl, line 1: "):
        read_examples(tmp_path)


def test_every_field_of_an_example_survives_the_disk(
    tmp_path: Path, full_disk: Callable[..., Any]
) -> None:
    tasks = {"one": [FULL, Example("2", "p", "r")], "two": [Example("1", "q")]}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="No space left"):
        patch.setattr(os, "replace", full_disk)
        write_examples(tmp_path, tasks)
    assert list(tmp_path.iterdir()) == []
    write_examples(tmp_path, tasks)
    assert len((tmp_path / "examples.jsonl").read_bytes().splitlines()) == 3
    assert read_examples(tmp_path) == {
        task: {example.id: example for example in examples} for task, examples in tasks.items()
    }


def test_an_invalid_example_is_located(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    with pytest.raises(UsageError, match=path.name):
        read_examples(tmp_path)
    good: dict[str, Any] = {"task": "t", "id": "1", "prompt": "p"}
    wrong: list[tuple[Any, str]] = [
        ([1], "must be a table"),
        ({"id": "1", "prompt": "p"}, "`task`"),
        (good | {"answer": "x"}, "`answer`"),
        (good | {"id": 1}, "`id`"),
        (good | {"tests": "assert x"}, "`tests`"),
        (good | {"tests": [1]}, "`tests.0.`"),
    ]
    lines = [(json.dumps(line), what) for line, what in wrong]
    for line, what in [*lines, ("[" * 100_000, "Invalid JSON")]:
        path.write_text(f"{json.dumps(good)}\n{line}\n")
        with pytest.raises(UsageError, match=rf"examples\.jsonl, line 2: .*{what}"):
            read_examples(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_examples(tmp_path)
