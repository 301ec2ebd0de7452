"""The six tasks on rows of their real data: a few stored here, and whole files.

Whole files are read from the folder in SPECBENCH_TEST_DATA, with the layout for --data.
"""

import os
from pathlib import Path

import pytest

from specbench.tasks.dataset import DataOptions, Dataset
from specbench.tasks.example import Example
from specbench.tasks.task import Task, load_task

SHIPPED = Path(__file__).parents[1] / "data"
WHOLE = os.environ.get("SPECBENCH_TEST_DATA")
needs_whole = pytest.mark.skipif(WHOLE is None, reason="SPECBENCH_TEST_DATA is not set")


def shipped(name: str, **asked: int) -> Task:
    return load_task(name, DataOptions(folder=SHIPPED, **asked))


def whole(name: str, **asked: int) -> Task:
    assert WHOLE is not None
    return load_task(name, DataOptions(folder=Path(WHOLE), **asked))


def test_gsm8k():
    examples = shipped("gsm8k").examples("test", None)
    plain, shot = (shipped("gsm8k", shots=k).examples("test", 1)[0] for k in (0, 2))
    assert len(examples) == 3 and examples[0] == plain
    assert plain.id == "test-0"
    assert plain.prompt.startswith("Question: Janet’s ducks lay 16 eggs per day.")
    assert plain.prompt.endswith("\n\nAnswer:") and "`#### `" in plain.prompt
    assert plain.reference is not None and plain.reference.endswith("#### 18")
    assert shot.prompt.endswith(f"\n\n{plain.prompt}")
    worked = shot.prompt.removesuffix(plain.prompt)
    assert worked.count("Question: ") == worked.count("\n\nAnswer: ") == 2
    assert worked.count("\n#### ") == 2  # as the strict metric requires
    assert (shot.id, shot.reference) == (plain.id, plain.reference)


def test_mbpp_and_humaneval():
    first, *_ = examples = shipped("mbpp").examples("test", None)
    assert [e.id for e in examples] == ["11", "12", "13"]
    assert first.prompt.startswith("Write a python function to remove first and last occurrence")
    cases = (("hello", "l", "heo"), ("abcda", "a", "bcd"), ("PHP", "P", "H"))
    assert first.tests == tuple(f'assert remove_Occ("{a}","{b}") == "{c}"' for a, b, c in cases)
    assert "\n".join(first.tests) in first.prompt
    assert first.reference is not None and first.reference.startswith("def remove_Occ(s,ch): \n")
    first, *_ = shipped("humaneval").examples("test", None)
    assert first.id == "HumanEval/0" and first.entry_point == "has_close_elements"
    assert first.code_prefix.startswith("from typing import List\n\n\ndef has_close_elements(")
    assert f"```python\n{first.code_prefix}```" in first.prompt
    assert first.tests[-1] == "check(has_close_elements)"
    program = f"{first.code_prefix}{first.reference}\n" + "\n".join(first.tests)
    compile(program, "humaneval", "exec")


@pytest.mark.parametrize("name", ["gsm8k", "mbpp"])
def test_the_next_few_shot_example_ends_an_answer(name):
    task = shipped(name, shots=2)
    examples = task.examples("test", None)
    assert examples and task.stop
    for example in examples:
        assert [example.prompt.count(string) for string in task.stop] == [2 + (name == "mbpp")]
        assert not any(string in (example.reference or "") for string in task.stop)


def test_a_few_shot_example_begins_with_the_stop_string():
    for name in ("cnndm", "gsm8k", "mbpp", "wmt16", "xsum"):
        task = load_task(name)
        assert isinstance(task.source, Dataset)
        definition = task.source.definition
        shot, reference = definition.prompt.shot, definition.example.reference
        assert shot and reference
        question, answer, _ = f"\n\n{shot}".partition(reference)
        assert answer
        assert [string in question for string in task.stop] == [True]


ROWS = {
    **{("gsm8k", "train"): 6726, ("gsm8k", "held-out"): 747, ("gsm8k", "test"): 1319},
    **{("mbpp", "train"): 337, ("mbpp", "held-out"): 37, ("mbpp", "test"): 500},
    **{("humaneval", "test"): 164, ("cnndm", "test"): 80, ("xsum", "test"): 200},
    ("wmt16", "test"): 1000,
}


@needs_whole
def test_every_split_loads_completely():
    for (name, split), rows in ROWS.items():
        task = whole(name)
        examples = task.examples(split, None)
        assert len({example.id for example in examples}) == len(examples) == rows
        for example in examples:
            assert "\r" not in example.prompt and example.passage in example.prompt
            assert example.reference and bool(example.tests) == (task.metric == "pass@1")
            assert all(test.strip() for test in example.tests)
    for name in ("gsm8k", "mbpp"):
        test, train = ({e.prompt for e in whole(name).examples(s, None)} for s in ("test", "train"))
        assert not test & train


@needs_whole
@pytest.mark.parametrize(("name", "words"), [("cnndm", "Summary:"), ("xsum", "one sentence")])
def test_an_article_can_be_cut_without_the_instruction(name, words):
    examples = whole(name).examples("test", None)
    assert len(examples) == ROWS[name, "test"]
    for example in examples:
        before, passage, after = example.prompt.rpartition(example.passage)
        assert passage == example.passage and words in before + after
        assert len(before + after) < 100


@needs_whole
def test_wmt16_asks_for_english():
    first: Example = whole("wmt16").examples("test", 1)[0]
    assert "German: Biker reagiert blitzschnell und verhindert Schlimmeres\n" in first.prompt
    assert first.prompt.endswith("English:")
    assert first.reference == "Biker reacts lightning fast and prevents worse."
