"""Broken task files and data files give one line with a location, never a traceback."""

import random
import re
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.tasks.dataset import DataOptions
from specbench.tasks.task import load_task

from .files import QUIZ, WRITERS, pack, quiz_folder, quiz_row, quiz_rows

WORDS = [b'"', b"{", b"}", b"[", b"]", b"\n", b"\\", b"=", b",", b"\xff", b"\0", b"9" * 5000]
WORDS += [b"null", b"true", b"[source]", b"{}", b"\\ud800", b"\\u0000", b"'''", b"-1", b"1e999"]


def mutated(rng: random.Random, content: bytes) -> bytes:
    at, words = rng.randrange(len(content)), content.split(b'"')
    match rng.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + rng.choice(WORDS) + content[at:]
        case 2:
            return content[:at] + rng.randbytes(rng.randrange(1, 8)) + content[at + 1 :]
        case 3:
            return b"".join(line for line in content.splitlines(True) if rng.random() < 0.8)
        case 4:
            one, other = rng.randrange(len(words)), rng.randrange(len(words))
            words[one], words[other] = words[other], words[one]
            return b'"'.join(words)
    return rng.randbytes(rng.randrange(200))


def outcome(path: Path, data: Path) -> str:
    """The error message, one line that names one of the files; "" without an error."""
    try:
        task = load_task(path, DataOptions(folder=data, shots=1))
        for split in ("test", "train", "held-out"):
            task.examples(split, None)
    except UsageError as error:
        said = str(error)
        assert "\n" not in said and len(said) < 1000, said
        assert "quiz" in said or str(data) in said, said
        return said
    return ""


def test_broken_task_files(tmp_path):
    path, rng, refused = quiz_folder(tmp_path), random.Random(0), 0
    assert not outcome(path, tmp_path / "data")
    for _ in range(300):
        path.write_bytes(mutated(rng, QUIZ.encode()))
        refused += bool(outcome(path, tmp_path / "data"))
    assert refused > 100


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", WRITERS)
def test_broken_data_files(suffix, packed, tmp_path):
    path, rng = quiz_folder(tmp_path), random.Random(suffix)
    data = tmp_path / "data/quiz" / f"test{suffix}"
    (tmp_path / "data/quiz/test.jsonl").unlink()
    WRITERS[suffix](quiz_rows(4), data)
    data = pack(data) if packed else data
    whole, refused = data.read_bytes(), 0
    for _ in range(50):
        data.write_bytes(mutated(rng, whole))
        refused += bool(outcome(path, tmp_path / "data"))
    assert refused > 10


LONG = "x" * 10_000_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.jsonl", b"", r"test\.jsonl:1: no rows in this data file"),
        ("test.jsonl", LONG.encode(), r"test\.jsonl:1: not valid JSON"),
        ("test.jsonl", b'{"a": "%b"}' % LONG.encode(), r"test\.jsonl:1: no `ask\.de` column"),
        ("test.csv", b'"a\nb","%b"\n1,2' % LONG[:9000].encode(), r"csv:1: no .*`a b`, `x+\.\.\.`;"),
        ("test.csv", LONG.encode(), r"test\.csv:1: (not valid CSV|no `ask\.de` column)"),
        ("test.jsonl", b'{"nr": %b}' % (b"9" * 5000), r"test\.jsonl:1: .*a number is too long"),
        ("test.csv", b'ask.de,kind\n"open', r"test\.csv:2: not valid CSV|no `gold` column"),
        ("test.parquet", b"PAR1 nonsense PAR1", r"test\.parquet: not a complete Parquet file"),
        ("test.jsonl.gz", b"\x1f\x8b\x08", r"test\.jsonl\.gz is damaged"),
    ],
)
def test_broken_files_are_located(name, content, message, tmp_path):
    path = quiz_folder(tmp_path)
    (tmp_path / "data/quiz/test.jsonl").unlink()
    (tmp_path / "data/quiz" / name).write_bytes(content)
    assert re.search(message, outcome(path, tmp_path / "data"))


def test_a_row_of_ten_megabytes_is_valid(tmp_path):
    row = {**quiz_row(0), "ask": {"de": LONG}}
    task = load_task(quiz_folder(tmp_path), DataOptions(folder=tmp_path / "data"))
    WRITERS[".jsonl"]([row], tmp_path / "data/quiz/test.jsonl")
    assert task.examples("test", 1)[0].passage == LONG
