"""A finished run of four tasks, for the tests that score it again."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from specbench.files import write_atomically
from specbench.tasks.example import Example

from ..synthetic import SAMPLE

TASKS = {
    "sums": ("accuracy", "accuracy-flexible"),
    "code": ("pass@1",),
    "words": ("bleu", "rouge1"),
    "free": (),
}
EXAMPLES = {
    "sums": [Example("1", "p", "#### 1"), Example("2", "p", "#### 2")],
    "code": [Example("1", "p", tests=("assert f() == 1",))],
    "words": [Example("1", "p", "a b c d e f"), Example("2", "p")],
    "free": [Example("1", "p")],
}
TEXTS = {
    "sums": ["#### 1", "in all 2"],
    "code": ["def f():\n    return 1"],
    "words": ["a b c d e g", "b"],
    "free": ["hello\u2028ü"],
}
Run = Callable[..., Path]


def measured(task: str, sample: str, text: str) -> dict[str, Any]:
    """A record without its scores."""
    return {
        **SAMPLE,
        **{"key": f"{task} {sample}", "place": [0], "run_id": "r", "pair": "p", "task": task},
        **{"sample_id": sample, "output_tokens": 8, "rounds": 2, "proposed": 10, "accepted": 6},
        **{"prefill_seconds": 0.5, "decode_seconds": 1.5, "latency_seconds": 2.0},
        **{"text": text, "token_ids": [1, 2]},
    }


def brief_summary(folder: Path) -> None:
    """Stand in for ``write_summary``, which takes longer than all else of a small run."""
    text = f"crc32\n{crc32((folder / 'samples.csv').read_bytes())}\n"
    for name in ("summary.csv", "summary.md"):
        write_atomically(folder / name, text)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def records(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "samples.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
