"""Every reference solution of MBPP and HumanEval passes its tests, and none passes without it."""

import gzip
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specbench.example import Example
from specbench.metrics.code import pass_at_1

HANDFUL = Path(__file__).parents[1] / "data"
WHOLE = os.environ.get("SPECBENCH_TEST_DATA")
needs_whole = pytest.mark.skipif(WHOLE is None, reason="SPECBENCH_TEST_DATA is not set")


def rows(file: Path) -> Iterator[dict[str, Any]]:
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt") as lines:
        yield from map(json.loads, lines)


def mbpp(row: dict[str, Any]) -> tuple[str, Example]:
    tests = (row["test_setup_code"], *row["test_list"], *row["challenge_test_list"])
    return row["code"], Example(str(row["task_id"]), row["text"], tests=tests)


def humaneval(row: dict[str, Any]) -> tuple[str, Example]:
    prompt, name = row["prompt"], row["entry_point"]
    tests = (row["test"], f"check({name})")
    example = Example(row["task_id"], prompt, tests=tests, code_prefix=prompt, entry_point=name)
    return row["canonical_solution"], example


def failing(file: Path) -> list[str]:
    pairs = map(mbpp if file.parent.name == "mbpp" else humaneval, rows(file))
    return [example.id for solution, example in pairs if not pass_at_1(solution, example)]


@pytest.mark.parametrize("file", ["mbpp/train", "mbpp/test", "humaneval/test"])
def test_a_handful_of_references_pass(file: str) -> None:
    path = HANDFUL / f"{file}.jsonl"
    assert list(rows(path)) and failing(path) == []


def test_a_chat_model_s_answer_passes_and_a_wrong_one_fails() -> None:
    for row in rows(HANDFUL / "humaneval" / "test.jsonl"):
        solution, example = humaneval(row)
        whole = row["prompt"] + solution
        assert pass_at_1(f"Here it is:\n```python\n{whole}```\nDone.", example) == 1.0
        assert pass_at_1(solution + "\n\ndef next_one(x):\n    '''", example) == 1.0
        assert pass_at_1("    return None\n", example) == 0.0
        assert pass_at_1("", example) == 0.0


@needs_whole
@pytest.mark.parametrize(
    "file",
    ["mbpp/train.jsonl", "mbpp/validation.jsonl", "mbpp/test.jsonl", "humaneval/test.jsonl.gz"],
)
def test_all_references_pass(file: str) -> None:
    assert failing(Path(str(WHOLE)) / file) == []


@needs_whole
def test_no_reference_passes_the_tests_of_another() -> None:
    whole = [humaneval(row) for row in rows(Path(str(WHOLE)) / "humaneval" / "test.jsonl.gz")]
    for (_, example), (other, _) in pairwise(whole[::5]):
        assert not pass_at_1(other, example), example.id
