"""Prompts that are too long to train on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.cli.choices import choose_tasks
from specbench.cli.options import data
from specbench.tasks.dataset import Sourcing

from .training import TINY, errors

Cli = Callable[..., Any]


def long_ones(monkeypatch: pytest.MonkeyPatch, which: Callable[[int], bool]) -> None:
    """Let some of the task's prompts be longer than any limit."""
    (task,) = choose_tasks(["mini-headline"], Sourcing())
    honest = task.source

    def examples(split: str, limit: int | None, seed: int) -> list[Any]:
        return [
            replace(e, prompt="word " * 600, passage="") if which(i) else e
            for i, e in enumerate(honest.examples(split, limit, seed))
        ]

    source = SimpleNamespace(examples=examples, provenance=honest.provenance)
    monkeypatch.setattr(data, "choose_tasks", lambda *_: [replace(task, source=source)])


def test_what_is_too_long_is_left_out_and_told_once(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.heads.files import read_description

    long_ones(monkeypatch, lambda i: i % 4 == 3)
    result = cli(*TINY, "--target-acceptance", "0.9,0.95", "--no-progress", "-o", "family")
    assert result.code == 0
    (told,) = (line for line in result.err.splitlines() if "left out" in line)
    assert told.startswith(
        "note: mini-headline: 1 training and 2 held-out examples are left out, longer than "
        "--max-prompt-tokens 512"
    )
    said = read_description(Path("family/acceptance-0.9/mini-headline"))
    assert said["left_out"] == {"train": 1, "held-out": 2}
    assert said["scores"]["n"] == 3


def test_a_task_of_long_prompts_is_refused_before_the_first_step(
    cli: Cli, models: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long_ones(monkeypatch, lambda i: i != 2)
    result = cli(*TINY, "--no-progress")
    assert result.code == 2
    (told,) = errors(result)
    assert "5 of 6 train examples of mini-headline cannot be used, the first because" in told
    assert "--max-prompt-tokens" in told
    assert list(tmp_path.iterdir()) == []
