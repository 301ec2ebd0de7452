"""Prompt files: the same prompts in every format, and the place of every mistake."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.tasks.prompts import MAX_NEW_TOKENS, prompts_task

# Rows with what trips readers up: commas, quotes, non-ASCII, a line separator that is no new line.
ROWS = [
    {"prompt": 'Add 2, then say "five".', "reference": "#### 5"},
    {"prompt": "Müller\u2028zählt bis 7", "reference": "#### 7"},
    {"prompt": "Take 1 from 10", "reference": "#### 9"},
]


def as_jsonl(rows: list[dict[str, str]], path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")


def as_csv(rows: list[dict[str, str]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets save it
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def as_txt(rows: list[dict[str, str]], path: Path) -> None:
    path.write_bytes("\r\n".join(row["prompt"] for row in rows).encode())


Write = Callable[[list[dict[str, str]], Path], None]
FORMATS: list[tuple[str, Write]] = [(".jsonl", as_jsonl), (".csv", as_csv), (".txt", as_txt)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("suffix", "write"), FORMATS)
def test_every_format_gives_the_same_prompts(
    suffix: str, write: Write, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"mine{suffix}"
    write(ROWS, path)
    if packed:
        plain, path = path, tmp_path / f"mine{suffix}.gz"
        path.write_bytes(gzip.compress(plain.read_bytes()))
    task = prompts_task(path)
    examples = task.examples("test", None)
    assert [e.prompt for e in examples] == [row["prompt"] for row in ROWS]
    references = [None] * 3 if suffix == ".txt" else [row["reference"] for row in ROWS]
    assert [e.reference for e in examples] == references
    assert (task.name, task.metric, task.stop) == ("mine", None, ())
    assert task.max_new_tokens == MAX_NEW_TOKENS


def test_examples_are_named_by_the_line_they_start_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('prompt\n"two\nlines"\n\nlast\n')
    assert [(e.id, e.prompt) for e in prompts_task(path).examples("test", None)] == [
        ("mine-2", "two\nlines"),
        ("mine-5", "last"),
    ]


def test_limit_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(50)))
    task = prompts_task(path)
    every = task.examples("test", None)
    assert task.examples("test", 7) == every[:7]
    with pytest.raises(UsageError, match="has no training split"):
        task.examples("train", 99)
    shuffled = task.examples("test", None, seed=3)
    assert shuffled != every
    assert sorted(shuffled, key=every.index) == every
    assert task.examples("test", 7, seed=3) == shuffled[:7]


def test_version_follows_the_content_and_not_the_packing(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("one")
    before = prompts_task(path).version
    (tmp_path / "other.txt.gz").write_bytes(gzip.compress(b"one"))
    assert prompts_task(tmp_path / "other.txt.gz").version == before
    path.write_text("two")
    assert prompts_task(path).version != before


def test_an_empty_or_missing_reference_is_none(tmp_path: Path) -> None:
    for name, text in (
        ("a.jsonl", '{"prompt": "p", "reference": ""}'),
        ("b.jsonl", '{"prompt": "p", "reference": null}'),
        ("c.csv", "prompt,reference\np"),  # fields left out at the end of a line
    ):
        (tmp_path / name).write_text(text)
        assert prompts_task(tmp_path / name).examples("test", 1)[0].reference is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "p"}\n{"prompt": p}', r"a\.jsonl:2: not valid JSON: .*column 12"),
        (
            "a.jsonl",
            b'{"prompt": "p"}\n\n["p"]',
            r'a\.jsonl:3: expected a JSON object such as {"prompt": "\.\.\."}$',
        ),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: not valid JSON: nested too deeply"),
        (
            "a.jsonl",
            b'{"question": "q", "answer": "a"}',
            r"a\.jsonl:1: no `prompt` column; columns found: `question`, `answer`;"
            " rename the right one to `prompt`",
        ),
        ("a.jsonl", b'{"prompt": ["p"]}', r"a\.jsonl:1: `prompt` must be a string, not list"),
        ("a.jsonl", b'{"prompt": " "}', r"a\.jsonl:1: the prompt is empty"),
        ("a.jsonl", b'{"prompt": "\\ud800"}', r"a\.jsonl:1: `prompt` has half a surrogate pair"),
        ("a.jsonl", b'{"prompt": "p", "reference": 5}', r"a\.jsonl:1: `reference` must be a str"),
        ("a.jsonl", b"\n\n", r"a\.jsonl:1: no rows in this prompt file"),
        ("a.csv", b"prompt;reference\np;r", r"a\.csv:1: no `prompt` .*: `prompt;reference`;"),
        ("a.csv", b"prompt\np\none, two", r"a\.csv:3: more fields than columns; quote"),
        (
            "a.csv",
            b"reference,prompt\nr,p\nr",
            r"a\.csv:3: the prompt is empty",
        ),
        ("a.csv", b'prompt\np\n"p" p', r"a\.csv:3: not valid CSV"),
        ("a.csv", b"prompt,reference\n", r"a\.csv:1: no rows in this prompt file"),
        ("a.txt", b" \n", r"a\.txt:1: no rows in this prompt file"),
        ("a.txt", b"p\n\np\xff", r"a\.txt:3: not UTF-8 text"),
        ("a.json", b'["p"]', r"a\.json: a prompt file ends in \.jsonl, \.csv or \.txt"),
        ("a.txt.gz", b"p", r"a\.txt\.gz: not a complete gzip file"),
    ],
)
def test_wrong_prompt_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        prompts_task(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_csv_may_hold_an_article_of_any_length(tmp_path: Path) -> None:
    article = "so it is. " * 20_000
    as_csv([{"prompt": article, "reference": "r"}], tmp_path / "mine.csv")
    assert [e.prompt for e in prompts_task(tmp_path / "mine.csv").examples("test", 1)] == [article]


def test_prompt_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    for name in ("none.txt", "folder.txt"):
        with pytest.raises(UsageError, match=f"cannot read the prompt file .*{name}: "):
            prompts_task(tmp_path / name)
