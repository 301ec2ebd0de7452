"""``specbench theory`` on a run made up by a simulation."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ..theory.runs import autoregressive, write, write_simulated

Cli = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_simulated(tmp_path / "run", lengths=(2, 5), prompts=30)


def test_text_says_what_is_predicted_and_measured(cli: Cli, run: Path) -> None:
    result = cli("theory", str(run))
    assert (result.code, result.err) == (0, "")
    titles = [line.strip() for line in result.out.splitlines() if " on mini, T = 1" in line]
    assert titles == [
        f"{what}: mini-math on mini, T = 1"
        for what in (
            "Acceptance and accepted length",
            "Tokens per round, and speed-up at the measured time of a round",
        )
    ]
    said = " ".join(result.out.split())
    assert said.count("agrees by construction") == 1
    assert max(map(len, result.out.splitlines())) <= 140
    assert "…" not in result.out  # nothing is cut


def test_all_formats_say_the_same(cli: Cli, run: Path) -> None:
    table = pd.read_csv(io.StringIO(cli("theory", str(run), "--format", "csv").out))
    text = cli("theory", str(run)).out
    markdown = cli("theory", str(run), "--format", "markdown").out
    chosen = table[(table["metric"] == "tokens_per_round") & (table["draft_length"] == 5)]
    (row,) = chosen.to_dict("records")
    for side in ("predicted", "measured"):
        assert f"| {row[side]:.2f} |" in markdown
        assert f" {row[side]:.2f} " in text
    assert "memory_bound_speedup" in set(table["metric"])


def test_a_pair_that_cannot_be_had_costs_one_figure(cli: Cli, run: Path) -> None:
    config = run / "config.json"
    config.write_text(config.read_text().replace("specbench/pairs/mini", "./nowhere"))
    result = cli("theory", str(run), "--format", "csv")
    assert result.code == 0
    assert "the memory-bound speed-up is left out: " in result.err
    assert "memory_bound_speedup" not in result.out
    assert "tokens_per_round" in result.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run --format latex", "unknown --format 'latex': give one of text, markdown, csv"),
        ("run --front-gap 0", "--front-gap must be 1 or more, not 0"),
        ("run --front-gap 1", "holds no examples.jsonl"),
        ("alone", "has nothing to predict: run a method that drafts"),
        ("nowhere", "no folder"),
    ],
)
def test_refusals(cli: Cli, run: Path, line: str, message: str) -> None:
    write(run.parent / "alone", [autoregressive("a", 3)])
    result = cli("theory", *line.split())
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
