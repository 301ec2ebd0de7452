"""Options that would be ignored are refused, and all that count are named in the next command."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.options.data import Tasks
from specbench.cli.options.groups import changed, retyped
from specbench.cli.options.models import Models

Cli = Callable[..., Any]


def test_options_at_their_defaults_are_not_typed_again() -> None:
    assert retyped(Models(), Tasks()) == changed(Models(), Tasks()) == []


def test_every_other_option_is_typed_again_with_its_value() -> None:
    models = Models(pair="llama", target_revision="v1", dtype="bfloat16", trust_remote_code=True)
    tasks = Tasks(task=["gsm8k", "my task.toml"], data=Path("files"), shots=0)
    assert retyped(models, tasks) == [
        *("--pair", "llama", "--target-revision", "v1", "--dtype", "bfloat16"),
        *("--trust-remote-code", "--task", "gsm8k", "--task", "my task.toml"),
        *("--data", "files", "--shots", "0"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --target-revision v1", "error: --target-revision goes with a model on the hub, and "),
        ("run --draft here --draft-revision v1", "--draft-revision goes with a model on the hub, "),
        ("train --draft-revision v1", "is a folder here: leave it out"),
        ("finetune-draft --draft-revision v1", "--draft-revision goes with a model on the hub, an"),
        (
            "run --pair llama --load-format dummy --target-revision v1",
            "--target-revision goes with a model that is read, not with --load-format dummy",
        ),
    ],
)
def test_a_revision_of_nothing_on_the_hub_is_refused(
    cli: Cli, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "here").mkdir()
    result = cli(*line.split())
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_offline_counts_for_models_too(tmp_path: Path) -> None:
    """In a process of its own: the hub's library looks once, when it is imported."""
    line = ["run", "--target", "nobody/big", "--draft", "nobody/small", "--method", "sd"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub")}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *line, "-t", "mini-math", "--offline"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    (told,) = (text for text in done.stderr.splitlines() if text.startswith("error: "))
    assert "nobody/big is not in the cache" in told
    assert "run once without --offline" in told


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--weight 1,0.9", "takes one number, not '1,0.9': for several, `specbench sweep-weights "),
        ("--lenience 1,2", "`specbench sweep --parameter lenience --values 1,2`"),
        ("--weight half", "--weight takes one number, not 'half'\n"),
    ],
)
def test_a_parameter_is_one_number(cli: Cli, typed: str, message: str) -> None:
    refused = cli("run", "-m", "lossy,static", *typed.split())
    assert refused.code == 2
    assert message in refused.err
