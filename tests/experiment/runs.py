"""Plans of prompts, their execution, and a finished run of four tasks that is scored again."""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from specbench.engine.pairs import Loading, PairSpec
from specbench.experiment.cells import method_variants
from specbench.experiment.execute import execute
from specbench.experiment.plan import Plan
from specbench.experiment.planning import Systems, build_plan
from specbench.experiment.store import Store, Summarise
from specbench.files import write_atomically
from specbench.runs.configuration import Settings
from specbench.runs.model import SampleRecord
from specbench.runs.records import TIMINGS
from specbench.runs.run import CONFIG
from specbench.tasks.example import Example
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Task

from ..synthetic import SAMPLE, sample_record

ROWS = (Example("t-0", "one", "#### 7"), Example("t-1", "three", "#### 8"), Example("t-2", "no"))
TASK = Task("t", "1", "", ("accuracy",), ("END",), 16, PromptList(ROWS), Path("t.toml"))
TABLES = ("samples.csv", TIMINGS, "summary.csv", "summary.md")

TASKS = {
    **{"sums": ("accuracy", "accuracy-flexible"), "code": ("pass@1",), "words": ("bleu", "rouge1")},
    "free": (),
}
EXAMPLES = {
    "sums": [Example("1", "p", "#### 1"), Example("2", "p", "#### 2")],
    "code": [Example("1", "p", tests=("assert f() == 1",))],
    "words": [Example("1", "p", "a b c d e f"), Example("2", "p")],
    "free": [Example("1", "p")],
}
TEXTS = {
    **{"sums": ["#### 1", "in all 2"], "code": ["def f():\n    return 1"]},
    **{"words": ["a b c d e g", "b"], "free": ["hello\u2028ü"]},
}
Run = Callable[..., Path]


def measured(task: str, sample: str, text: str) -> SampleRecord:
    fields = {
        **SAMPLE,
        **{"key": f"{task} {sample}", "place": [0], "run_id": "r", "pair": "p", "task": task},
        **{"sample_id": sample, "output_tokens": 8, "rounds": 2, "proposed": 10, "accepted": 6},
        **{"prefill_seconds": 0.5, "decode_seconds": 1.5, "latency_seconds": 2.0},
        **{"text": text, "token_ids": [1, 2]},
    }
    return sample_record(**fields)


def brief_summary(folder: Path) -> None:
    """Stand in for ``write_summary``, which takes longer than all else of a small run."""
    text = f"crc32\n{crc32((folder / 'samples.csv').read_bytes())}\n"
    for name in ("summary.csv", "summary.md"):
        write_atomically(folder / name, text)


def task_of(*examples: Example, **changes: Any) -> Task:
    return replace(TASK, source=PromptList(examples), **changes)


def plan_of(names: list[str], task: Task = TASK, lengths: Sequence[int] = (5,), **settings: Any):
    pair, loading = PairSpec("p", "t", "d"), Loading(dtype="float32")
    systems = Systems(method_variants(names, {}), lengths)
    return build_plan(pair, [task], systems, Settings(**settings), loading=loading)


def executed(
    plan: Plan,
    folder: Path | None,
    *,
    stop_after: int | None = None,
    fresh: bool = False,
    summarise: Summarise = brief_summary,
    **options: Any,
) -> Store:
    """Execute a plan as the command line does; Ctrl-C stops it after so many samples."""
    if stop_after is not None:
        decoded = count(1)
        options["stop"] = lambda: next(decoded) == stop_after
    store = Store.open(folder, "run", plan.describe(), fresh, summarise)
    with nullcontext() if stop_after is None else pytest.raises(KeyboardInterrupt), store:
        execute(plan, store, **options)
    return store


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tables(folder: Path) -> dict[str, str]:
    files = (folder / name for name in TABLES)
    return {file.name: file.read_text() for file in files if file.exists()}


def progress(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / CONFIG).read_text())["progress"]
    return state


class ByCharacter:
    """One token per character, without a chat template."""

    chat_template = None
    bos_token_id = None
    eos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) for c in text]}

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))
