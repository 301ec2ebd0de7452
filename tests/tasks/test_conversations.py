"""Prompt files with OpenAI's ``messages`` and ShareGPT's ``conversations``."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.experiment.rescore import _unfit
from specbench.tasks.example import Example
from specbench.tasks.metrics import try_metrics
from specbench.tasks.prompts import prompts_task

from ..told import listed

SYSTEM = {"role": "system", "content": "Be brief."}
USER, ANSWER = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
NEXT = {"role": "user", "content": [{"type": "text", "text": text} for text in ("And", "3?")]}
CALL: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"function": {}}]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "4"}


def read(tmp_path: Path, *rows: Any, name: str = "a.jsonl") -> list[Example]:
    path = tmp_path / name
    path.write_text(json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows)))
    return prompts_task(path).examples("test", None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(
    ("messages", "asked", "prompt", "reference"),
    [
        ([USER], 1, "1 + 1?", None),
        ([SYSTEM, USER, ANSWER], 2, "1 + 1?", "2"),
        ([SYSTEM, USER, ANSWER, NEXT], 4, "And\n3?", None),
        ([USER, CALL, RESULT, ANSWER], 3, "4", "2"),
        ([USER, CALL], 1, "1 + 1?", None),
    ],
)
def test_messages_are_kept_as_they_are(tmp_path, name, messages, asked, prompt, reference):
    (example,) = read(tmp_path, {"messages": messages, "source": "x"}, name=name)
    assert example.chat() == messages[:asked] and example.columns == {"source": "x"}
    assert (example.messages, example.reference) == ((prompt,), reference)


def test_conversations_of_sharegpt_are_messages_and_a_file_may_be_one_request(tmp_path):
    spoken = ("system", "Be brief."), ("Human", "1 + 1?"), ("gpt", "2"), ("tool", "4"), ("gpt", "5")
    turns = [{"from": speaker, "value": text} for speaker, text in spoken]
    rows = {"id": "x_0", "conversations": turns}, {"conversations": turns[1:3]}
    first, second, third = read(tmp_path, *rows, {"conversations": [USER, ANSWER]}, name="a.json")
    assert first.chat() == [SYSTEM, USER, ANSWER, {"role": "tool", "content": "4"}]
    assert (first.id, first.prompt, first.reference) == ("x_0", "4", "5")
    assert (second.id, second.chat(), second.reference) == ("a-2", [USER], "2")
    assert (third.chat(), third.reference) == ([USER], "2")  # with OpenAI's names
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["messages"], [json.dumps([SYSTEM, USER])]])
    (stored,) = prompts_task(tmp_path / "a.csv").examples("test", None)
    assert stored.chat() == [SYSTEM, USER]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"model": "m", "messages": [SYSTEM, USER]}, indent=2))
    (example,) = prompts_task(path).examples("test", None)
    assert example.chat() == [SYSTEM, USER] and example.id == "a-1"


def test_every_turn_has_a_reference_that_a_metric_can_read(tmp_path):
    turns = {"turns": ["1 + 1?", "+ 1?"]}
    (late,) = read(tmp_path, turns | {"reference": [None, "3"]})
    assert [turn.reference for turn in late.each_turn()] == [None, "3"]
    assert _unfit("accuracy-flexible", [late]) is None
    (wrong,) = read(tmp_path, turns | {"reference": ["2", "three"]})
    with pytest.raises(UsageError, match="has no number"):
        try_metrics(["accuracy-flexible"], [wrong])


@pytest.mark.parametrize(("messages", "told"), listed("tasks/no_conversations.txt"))
def test_what_is_no_conversation_is_located(tmp_path, messages, told):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, {"messages": messages})
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"question": "1 + 1?", "n": 1}, "prompt"),
        ({"questions": ["1 + 1?", "+ 1?"]}, "turns"),
        ({"dialog": [SYSTEM, USER], "source": "x"}, "messages"),
        ({"chat": [{"from": "human", "value": "a"}], "source": "x"}, "conversations"),
    ],
)
def test_the_advice_for_a_wrong_column_works(tmp_path, row, column):
    name = next(iter(row))
    with pytest.raises(UsageError, match=f"rename `{name}` to `{column}`$"):
        read(tmp_path, row)
    row[column] = row.pop(name)
    assert len(read(tmp_path, row)) == 1


def test_advice_where_the_column_is_not_clear(tmp_path):
    with pytest.raises(UsageError, match=r"rename the right one of `a`, `b` to `prompt`$"):
        read(tmp_path, {"a": "x", "b": "y"})
    with pytest.raises(UsageError, match="give each row `prompt`, a text"):
        read(tmp_path, {"body": {"messages": [USER]}, "data": [{"prompt": "a"}]})
