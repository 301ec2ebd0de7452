"""``specbench finetune-draft``, from the command line to a draft that ``run`` can use."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli

SHORT = ("--steps", "5", "--batch-size", "1")


def test_every_task_gets_a_draft_that_a_run_can_use(cli: Cli, tmp_path: Path) -> None:
    result = cli("finetune-draft", "-t", "mini-headline,mini-math", *SHORT)
    assert result.code == 0
    folder = "results/drafts/mini/mini-headline"
    first, second, hint = result.out.splitlines()
    assert first.startswith(f"{folder}: held-out loss ")
    assert second.startswith("results/drafts/mini/mini-math: held-out loss ")
    assert first.endswith("after (nats per token, n = 64)")
    assert hint.startswith("use it: specbench run --method sd --task mini-math --pair mini --draft")
    assert [line.rpartition(" ")[0] for line in result.err.splitlines()] == [
        f"mini draft on {task}: step {step}, loss"
        for task in ("mini-headline", "mini-math")
        for step in (1, 5)
    ]

    line = hint.removeprefix("use it: specbench ").split()
    used = cli(*line, "--limit", "1", "--output", "r")
    assert used.code == 0
    assert "mini-math on mini+mini-math" in used.out
    assert (tmp_path / "r" / "summary.csv").is_file()


def test_an_interruption_keeps_finished_samples_and_names_missing_ones(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.training import finetune

    once = finetune.finetune_draft

    def stopped(draft: str, task: Any, *rest: Any) -> Any:
        if task.name == "mini-math":
            raise KeyboardInterrupt
        return once(draft, task, *rest)

    monkeypatch.setattr(finetune, "finetune_draft", stopped)
    line = ("finetune-draft", "-t", "mini-headline,mini-math", "--steps", "1", "-o", "d")
    result = cli(*line, "--no-progress")
    assert result.code == 130
    assert result.err == "error: interrupted: d/mini-math was not written\n"
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["mini-headline"]
