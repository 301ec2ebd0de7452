"""``specbench transfer``: the matrix of heads and tasks, on disk and on the screen."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
TASKS = ("mini-headline", "mini-math")
LINE = ("transfer", "-t", ",".join(TASKS), "--limit", "2", "--output", "r")


def matrix(folder: Path) -> dict[tuple[str, str, str], str]:
    with (folder / "transfer.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["trained_on"], row["task"], row["metric"]): row["value"] for row in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with heads for two tasks, one of which is not measured, and one that is no head."""
    for name in ("mini-math", "elsewhere"):
        (tmp_path / "h" / name).mkdir(parents=True)
        (tmp_path / "h" / name / "head.safetensors").touch()
        about = {"kind": "mlp", "task": name}
        (tmp_path / "h" / name / "head.json").write_text(json.dumps(about))
    (tmp_path / "h" / "notes").mkdir()
    return tmp_path / "h"


def test_every_head_serves_every_task(cli: Cli, engine: Any, tmp_path: Path, folder: Path) -> None:
    result = cli(*LINE, "--head", "h")
    assert result.code == 0
    assert result.err.splitlines()[0] == "note: heads: mini-math, elsewhere h (mlp)"
    assert engine.heads == [Path("h/mini-math"), Path("h/elsewhere")]
    found = matrix(tmp_path / "r")
    assert list(dict.fromkeys(head for head, _, _ in found)) == ["sd", "mini-math", "elsewhere"]
    assert {task for _, task, _ in found} == set(TASKS)
    assert {metric for _, _, metric in found} == {"quality", "draft_acceptance_rate"}
    assert float(found["elsewhere", "mini-math", "draft_acceptance_rate"]) == 0.6
    assert "| mini-math |" in (tmp_path / "r" / "transfer.md").read_text()
    for text in ("no head (sd)", "elsewhere", "mini-headline, ROUGE-2 (n = 2)", "results: r"):
        assert text in result.out


def test_a_pair_s_own_heads_are_compared_by_default(cli: Cli, engine: Any, tmp_path: Path) -> None:
    result = cli(*LINE)
    assert result.code == 0
    assert "heads: mini-headline, mini-math, mini-code, mini-news bundled (linear)" in result.err
    heads = list(dict.fromkeys(head for head, _, _ in matrix(tmp_path / "r")))
    # Rows in the order of the tasks, so that a head's own task is on the diagonal.
    assert heads == ["sd", "mini-headline", "mini-math", "mini-code", "mini-news"]


def test_the_figure_is_drawn_and_can_be_drawn_again(
    cli: Cli, engine: Any, tmp_path: Path, folder: Path
) -> None:
    assert cli(*LINE, "--head", "h").code == 0
    drawn = {kind: tmp_path / "r" / "figures" / f"transfer.{kind}" for kind in ("png", "svg")}
    first = {kind: path.read_bytes() for kind, path in drawn.items()}
    assert cli("plot", "transfer", "r").code == 0
    assert {kind: path.read_bytes() for kind, path in drawn.items()} == first


def test_samples_that_fail_leave_a_matrix_of_the_rest(
    cli: Cli, engine: Any, tmp_path: Path, folder: Path
) -> None:
    engine.failing = {5: ValueError("broken")}
    result = cli(*LINE, "--head", "h")
    assert result.code == 1
    assert "samples failed, the first with: ValueError: broken" in result.err
    assert len(matrix(tmp_path / "r")) == 2 * 3 * 2


def test_another_run_has_no_matrix_to_draw(cli: Cli, engine: Any) -> None:
    cli("run", "-m", "sd,diversed", "-t", "mini-math", "--limit", "2", "--output", "r")
    result = cli("plot", "transfer", "r")
    assert result.code == 2
    assert "these runs compare no heads: start with `specbench transfer`" in result.err
