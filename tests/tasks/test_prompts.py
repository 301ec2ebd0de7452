"""Prompt files: the same prompts in every format, and the location of every error."""

import csv
import gzip
import io
import json
import lzma
from functools import partial
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.tasks.example import Example
from specbench.tasks.metrics import score, try_metrics
from specbench.tasks.prompts import MAX_NEW_TOKENS, PromptList, prompts_task, tools_of

from ..told import refusals

# Rows with difficult content: commas, quotes, non-ASCII, a separator that is not a line break.
ROWS = [
    {"prompt": 'Add 2, then say "five".', "reference": "#### 5"},
    {"prompt": "Müller\u2028zählt bis 7", "reference": "#### 7"},
    {"prompt": "Take 1 from 10", "reference": "#### 9"},
]


def as_csv(rows: list[dict[str, str]]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode("utf-8-sig")  # as spreadsheets save it


FORMATS = {
    ".json": json.dumps(ROWS, indent=2).encode(),
    ".jsonl": "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode(),
    ".csv": as_csv(ROWS),
    ".txt": "\r\n".join(row["prompt"] for row in ROWS).encode(),
}


def read(path: Path, content: bytes) -> list[Example]:
    path.write_bytes(content)
    return prompts_task(path).examples("test", None)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_prompts(suffix, tmp_path):
    packed = {"mine.gz": gzip.compress(FORMATS[suffix]), "mine.xz": lzma.compress(FORMATS[suffix])}
    for name, content in {"mine": FORMATS[suffix], **packed}.items():
        path = tmp_path / name.replace("mine", f"mine{suffix}")
        examples = read(path, content)
        assert [e.prompt for e in examples] == [row["prompt"] for row in ROWS]
        references = [None] * 3 if suffix == ".txt" else [row["reference"] for row in ROWS]
        assert [e.reference for e in examples] == references
        task = prompts_task(path)
        assert (task.name, task.metric, task.stop) == ("mine", None, ())
        assert task.max_new_tokens == MAX_NEW_TOKENS and isinstance(task.source, PromptList)


def test_names_limit_seed_and_version(tmp_path):
    examples = read(tmp_path / "mine.csv", b'prompt\n"two\nlines"\n\nlast\n')
    assert [(e.id, e.prompt) for e in examples] == [("mine-2", "two\nlines"), ("mine-5", "last")]
    path = tmp_path / "mine.txt"
    every = read(path, "".join(f"prompt {i}\n" for i in range(50)).encode())
    task = prompts_task(path)
    assert task.examples("test", 7) == every[:7]
    with pytest.raises(UsageError, match="has no training split"):
        task.examples("train", 99)
    shuffled = task.examples("test", None, seed=3)
    assert shuffled != every and sorted(shuffled, key=every.index) == every
    assert task.examples("test", 7, seed=3) == shuffled[:7]
    versions = []
    for name, content in (("a.txt", b"one"), ("b.txt.gz", gzip.compress(b"one")), ("c.txt", b"2")):
        (tmp_path / name).write_bytes(content)
        versions.append(prompts_task(tmp_path / name).version)
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"prompt": "p", "reference": ""}'),
        ("b.jsonl", b'{"prompt": "p", "reference": null}'),
        ("c.csv", b"prompt,reference\np"),  # fields missing at the end of a line
    ],
)
def test_an_empty_or_missing_reference_is_none(name, content, tmp_path):
    assert read(tmp_path / name, content)[0].reference is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "p"}\n{"prompt": p}', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not valid JSON: nested too deeply"),
        ("a.csv", b'prompt\np\n"p" p', "a.csv:3: not valid CSV"),
        ("a.txt", b"p\n\np\xff", "a.txt:3: not UTF-8 text"),
        ("a.json", b'[{"prompt": "p"},\n{"prompt": p}]', "a.json:2: not valid JSON"),
        ("a.txt.gz", b"p", "a.txt.gz is damaged"),
    ],
)
def test_prompt_files_that_cannot_be_read_are_located(name, content, message, tmp_path):
    with pytest.raises(UsageError) as caught:
        read(tmp_path / name, content)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "folder.txt").mkdir()
    for missing in ("none.txt", "folder.txt"):
        with pytest.raises(UsageError, match=f"cannot read the prompt file .*{missing}: "):
            prompts_task(tmp_path / missing)


WRONG = {
    "a.jsonl": [
        *(b'{"prompt": "p"}\n\n["p"]', b'{"q": "q", "a": "a"}', b'{"prompt": ["p"]}'),
        *(b'{"prompt": " "}', b'{"prompt": "\\ud800"}', b'{"prompt": "p", "reference": 4.0}'),
        *(b"\n\n", b'{"turns": []}', b'{"turns": ["a", " "]}', b'{"turns": ["a", 5]}'),
        *(b'{"prompt": "p", "reference": true}', b'{"prompt": "p", "reference": ["a", 4]}'),
        *(b'{"prompt": "p", "reference": {"a": 4}}', b'{"turns": ["a"]}\n{"text": "b"}'),
        b'{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}',
        *(b'{"prompt": "a", "id": [1]}', b'{"prompt": "a", "passage": "b"}'),
    ],
    "a.csv": [
        *(b"prompt;reference\np;r", b"prompt\treference\np\tr", b"id|prompt\np|r"),
        *(b"question\np", b"prompt\np\none, two", b"reference,prompt\nr,p\nr"),
        *(b"prompt,reference\n", b"prompt,reference,reference\np,1,2"),
    ],
    **{"a.txt": [b" \n"], "a.yaml": [b"- p"]},
    "a.json": [b'["p"]', b'[{"prompt": "p"}, {"text": 1}]', b"[]"],
}


def test_wrong_prompt_files(tmp_path, stored):
    lines = []
    for name, contents in WRONG.items():
        for content in contents:
            lines.append(f"{content!r}: {refusals(partial(read, tmp_path / name, content))}")
    assert all(line.count("\n") == 1 for line in lines)
    stored("".join(lines))


# Spec-Bench's form: conversations, references as lists, numbers as ids.
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    {"question_id": 111, "category": "math", "turns": ["1 + 1?", "+ 1?"], "reference": ["2", "3"]},
    {"question_id": 112, "category": "math", "turns": ["2 + 2?", "+ 1?"], "reference": ["4"]},
    {"question_id": 241, "category": "qa", "turns": ["When?"], "reference": ["1972", "in 1972"]},
]


def test_the_questions_of_spec_bench_are_read_as_they_are(tmp_path):
    examples = read(tmp_path / "question.jsonl", "\n".join(map(json.dumps, QUESTIONS)).encode())
    assert [(e.id, e.category, e.messages) for e in examples] == [
        (str(row["question_id"]), row["category"], tuple(row["turns"])) for row in QUESTIONS
    ]
    references = [(None, None), ("2", "3"), ("4", None), ()]
    assert [e.references for e in examples] == references
    assert [e.reference for e in examples] == [None, "2", "4", "1972"]
    assert [e.alternatives for e in examples] == [(), (), (), (("in 1972",),)]
    assert [e.prompt for e in examples] == ["Write.", "1 + 1?", "2 + 2?", "When?"]
    assert not examples[3].turns  # a single turn is a prompt


@pytest.mark.parametrize(
    ("row", "references", "alternatives"),
    [
        ({"prompt": "p", "reference": ["a", "b", ""]}, ("a",), (("b",),)),
        ({"prompt": "p", "reference": ["a"]}, ("a",), ()),
        ({"prompt": "p", "reference": []}, (None,), ()),
        ({"prompt": "p", "reference": [["a", "b"]]}, ("a",), (("b",),)),
        (
            {"messages": [{"role": "user", "content": "p"}], "reference": ["a", "b"]},
            ("a",),
            (("b",),),
        ),
        ({"turns": ["p", "q"], "reference": [None, ["a", "b"]]}, (None, "a"), ((), ("b",))),
        ({"turns": ["p", "q"], "reference": "a"}, ("a", None), ()),
    ],
)
def test_a_list_of_references_has_alternatives_or_turns(row, references, alternatives, tmp_path):
    (example,) = read(tmp_path / "mine.jsonl", json.dumps(row).encode())
    assert example.reference == references[0]
    assert example.references == (references if len(references) > 1 else ())
    assert example.alternatives == alternatives
    assert ("alternatives" in example.identity()) == bool(alternatives)


def test_own_names_and_other_columns_are_kept_and_long_prompts_can_be_cut(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [
        {"id": "a", "prompt": "Sum up: long text", "passage": "long text", "level": [1]},
        {"prompt": "no passage"},
    ]
    first, second = read(path, "\n".join(map(json.dumps, rows)).encode())
    assert (first.id, first.passage, first.columns) == ("a", "long text", {"level": [1]})
    assert (second.id, second.passage, second.columns) == ("mine-2", "", None)
    cut = prompts_task(path, cut=True).examples("test", None)
    assert [e.passage for e in cut] == ["long text", "no passage"]


def test_a_csv_file_may_hold_conversations_and_an_article_of_any_length(tmp_path):
    article = "so it is. " * 20_000
    (example,) = read(tmp_path / "mine.csv", as_csv([{"prompt": article, "reference": "r"}]))
    assert example.prompt == article
    rows = [{"turns": '["one", "two"]', "reference": '["1", "2"]'}]
    (example,) = read(tmp_path / "talk.csv", as_csv(rows))
    assert (example.turns, example.references) == (("one", "two"), ("1", "2"))
    plain = [{"prompt": "one", "reference": '["1", "2"]'}]  # a text, without turns
    assert read(tmp_path / "plain.csv", as_csv(plain))[0].reference == '["1", "2"]'


USER = {"from": "human", "value": "What is 2 + 2?"}


def written(tmp_path, *rows):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_a_system_column_is_sent_with_its_conversation(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    asked = {"role": "user", "content": "2 + 2?"}
    rows = [
        {"system": "Be brief.", "conversations": [USER]},
        {"system": "Be brief.", "messages": [asked, {"role": "assistant", "content": "4"}]},
        {"system": "Be long.", "messages": [system, asked]},
        {"system": "", "conversations": [USER]},
    ]
    examples = prompts_task(written(tmp_path, *rows)).examples("test", None)
    assert [dict(e.conversation[0]) == system for e in examples] == [True, True, True, False]
    assert examples[1].reference == "4" and examples[1].prompt == "2 + 2?"


@pytest.mark.parametrize("column", ["system", "tools"])
def test_a_column_that_is_not_sent_is_named(tmp_path, caplog, column):
    prompts_task(written(tmp_path, {"prompt": "2 + 2?", column: "hm"}))
    assert f"the column `{column}` is " in caplog.text and "sent" in caplog.text


BARE = {"name": "add", "parameters": {}}


@pytest.mark.parametrize(
    ("columns", "sent", "note"),
    [
        ({"tools": [{"type": "function", "function": BARE}]}, True, "sent only to servers"),
        ({"tools": json.dumps([BARE])}, True, "sent only to servers"),  # as in files of ShareGPT
        ({"tools": "add"}, False, "`tools` is not sent"),
        ({"tools": [{"type": "web"}]}, False, "`tools` is not sent"),
        ({"functions": [BARE]}, False, "`functions` is not sent"),
    ],
)
def test_tools_in_any_form_are_sent_or_named(tmp_path, caplog, columns, sent, note):
    path = written(tmp_path, {"conversations": [USER], **columns})
    (example,) = prompts_task(path).examples("test", None)
    expected = [{"type": "function", "function": BARE}] if sent else None
    assert tools_of(example.columns) == expected and note in caplog.text
    assert caplog.text.count(" sent") == 1


@pytest.mark.parametrize(
    "empty", [[], [{"from": "gpt", "value": "Hi."}], [{"from": "system", "value": "Be brief."}]]
)
def test_entries_without_a_message_of_the_user_are_skipped_and_counted(tmp_path, caplog, empty):
    path = written(tmp_path, {"conversations": empty}, {"conversations": [USER]})
    (example,) = prompts_task(path).examples("test", None)
    assert example.id == "p-2" and "1 of 2 entries lack a user's message: skipped" in caplog.text
    with pytest.raises(UsageError, match=r"has no message of the user|must be a list"):
        prompts_task(written(tmp_path, {"conversations": empty}))


CHECKED = "def check(candidate):\n    assert candidate(2) == 4\n"
HEAD = 'def double(x):\n    """Double."""\n'


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ({"tests": ["assert double(2) == 4"], "entry_point": "double"}, f"{HEAD}    return 2 * x"),
        ({"tests": "assert double(2) == 4"}, f"{HEAD}    return 2 * x"),
        ({"test_list": ["assert double(2) == 4"]}, f"```python\n{HEAD}    return 2 * x\n```"),
        (
            {
                "test_imports": ["import math"],
                "test_setup_code": "two = math.sqrt(4)",
                "test_list": ["assert double(two) == 4"],
            },
            f"{HEAD}    return 2 * x",
        ),
        ({"prompt": HEAD, "test": CHECKED, "entry_point": "double"}, "    return 2 * x\n"),
    ],
)
def test_code_rows_can_be_scored(tmp_path, columns, answer):
    path = written(tmp_path, {"prompt": "Write double.", **columns})
    (example,) = prompts_task(path).examples("test", None)
    assert score("pass@1", answer, example) == 1.0
    assert score("pass@1", answer.replace("2 *", "3 *"), example) == 0.0


def test_an_alternative_without_a_number_does_not_spoil_the_others(tmp_path):
    path = written(tmp_path, *({"prompt": "2?", "reference": r} for r in (["4", "four"], "four")))
    first, second = prompts_task(path).examples("test", None)
    for name in ("accuracy", "accuracy-flexible"):
        assert (score(name, "#### 4", first), score(name, "#### 5", first)) == (1.0, 0.0)
        try_metrics([name], [first])
        with pytest.raises(UsageError, match="`p-2` has no number"):
            try_metrics([name], [first, second])  # before anything is decoded
