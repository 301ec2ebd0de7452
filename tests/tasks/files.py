"""Small task files and data files for tests."""

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..told import DATA

TOY = (DATA / "tasks/toy.toml").read_text(encoding="utf-8")

QUIZ = (DATA / "tasks/quiz.toml").read_text(encoding="utf-8")

Row = dict[str, Any]


def quiz_row(number: int, split: str = "test") -> Row:
    ask = {"de": f"Wie viel, {split} {number}?", "en": "How much?"}
    row = {"nr": number, "kind": split, "ask": ask, "gold": f"{number}", "setup": ""}
    return row | {"checks": [f"assert {number}", "assert True"]}


def quiz_rows(count: int, split: str = "test") -> list[Row]:
    return [quiz_row(number, split) for number in range(count)]


def write_jsonl(rows: Sequence[Row], path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Nested columns by their dotted names, lists as JSON."""
    flat = [row | {"ask.de": row["ask"]["de"], "checks": json.dumps(row["checks"])} for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = [name for name in flat[0] if name != "ask"]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(flat)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    from pyarrow import Table
    from pyarrow.parquet import write_table

    write_table(Table.from_pylist(list(rows)), path)


WRITERS = {".jsonl": write_jsonl, ".csv": write_csv, ".parquet": write_parquet}


def pack(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


def quiz_folder(folder: Path, test: int = 4, train: int = 20) -> Path:
    (folder / "data/quiz").mkdir(parents=True)
    write_jsonl(quiz_rows(test), folder / "data/quiz/test.jsonl")
    if train:
        write_jsonl(quiz_rows(train, "train"), folder / "data/quiz/train.jsonl")
    (folder / "quiz.toml").write_text(QUIZ)
    return folder / "quiz.toml"
