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


def test_all_formats_say_the_same(cli: Cli, run: Path) -> None:
    table = pd.read_csv(io.StringIO(cli("theory", str(run), "--format", "csv").out))
    result = cli("theory", str(run))
    assert (result.code, result.err) == (0, "")
    assert "mini-math on mini, T = 1" in result.out
    assert max(map(len, result.out.splitlines())) <= 140
    markdown = cli("theory", str(run), "--format", "markdown").out
    chosen = table[(table["metric"] == "tokens_per_round") & (table["draft_length"] == 5)]
    (row,) = chosen.to_dict("records")
    for side in ("predicted", "measured"):
        assert f"| {row[side]:.2f} |" in markdown
        assert f" {row[side]:.2f} " in result.out
    assert "memory_bound_speedup" in set(table["metric"])


def test_without_its_pair_a_run_lacks_one_figure(cli: Cli, run: Path) -> None:
    config = run / "config.json"
    config.write_text(config.read_text().replace("specbench/pairs/mini", "./nowhere"))
    result = cli("theory", str(run), "--format", "csv")
    assert result.code == 0
    assert "the memory-bound speed-up is left out: " in result.err
    assert "memory_bound_speedup" not in result.out
    assert "tokens_per_round" in result.out


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("run --format latex", "--format"),
        ("run --front-gap 0", "--front-gap"),
        ("run --front-gap 1", "examples.jsonl"),
        ("alone", "alone has nothing to predict"),
        ("nowhere", "no folder"),
    ],
)
def test_refusals(cli: Cli, run: Path, line: str, place: str) -> None:
    write(run.parent / "alone", [autoregressive("a", 3)])
    result = cli("theory", *line.split())
    assert (result.code, result.out) == (2, "")
    assert place in result.err
    assert result.err.count("\n") == 1
