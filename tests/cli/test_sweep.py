"""Sweeps of parameters and weights, and heads on other tasks than their own."""

import re
import shlex
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import measure
from specbench.errors import UsageError

from ..synthetic import rows
from ..told import listed

ROOT = Path(__file__).parents[2]
MOST_SAMPLES = 400  # of `make run`, which the README promises to take one to three minutes

FAST = ("-t", "mini-math", "--limit", "2", "--no-progress", "--output", "r")
TRANSFER = ("run", "-m", "sd,diversed", "-t", "mini-headline,mini-math", "-n", "2", "-o", "r")


def variants(folder: Path, *names: str) -> list[tuple[str, ...]]:
    """Return the method and some parameters of every cell in table order, numbers as floats."""
    return list(dict.fromkeys(tuple(row[n] for n in ("method", *names)) for row in rows(folder)))


@pytest.mark.parametrize(("line", "columns", "expected"), listed("cli/sweeps.txt"))
def test_a_grid_is_measured_with_its_anchors(cli, engine, tmp_path, line, columns, expected):
    cli(*line.split(), *FAST, code=0)
    measured = variants(tmp_path / "r", *columns)
    if expected[0][0] != "autoregressive":  # it is measured with any draft
        assert measured.pop(0) == ("autoregressive", *("" for _ in columns))
    assert measured == [*map(tuple, expected)]


def test_heads_that_are_named_by_their_tasks_are_compared_on_every_task(cli, engine, tmp_path):
    cli(*TRANSFER, "--head", "mini-math,mini-code", code=0)
    assert [path.name for path in engine.heads] == ["mini-math", "mini-code"]
    page = (tmp_path / "r" / "summary.md").read_text()
    assert "| diversed mini-math |" in page and "| diversed mini-code |" in page
    assert cli("plot", "transfer", "r").code == 0
    table = rows(tmp_path / "r" / "figures" / "transfer.csv")
    drawn = sorted((row["trained_on"], row["task"], row["metric"]) for row in table)
    heads, tasks = ("sd", "mini-math", "mini-code"), ("mini-headline", "mini-math")
    metrics = ("draft_acceptance_rate", "quality")
    assert drawn == sorted(product(heads, tasks, metrics))
    cli("run", "-m", "sd,diversed", "-t", "mini-math", "--limit", "2", "--output", "other")
    assert cli("plot", "transfer", "other").code == 2


def test_make_run_plans_few_samples_of_bundled_tasks(cli, monkeypatch):
    planned: list[Any] = []

    def stop(plan, worker):
        planned.append(plan)
        raise UsageError("it is planned")

    monkeypatch.setattr(measure, "forecast", stop)
    make = ["make", "-C", str(ROOT), "--dry-run", "run"]
    recipe = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    measuring = re.findall(r"/specbench ((?:run|sweep)\S* .*)", recipe)
    for line in measuring:
        cli(*shlex.split(line), "--dry-run")
    assert len(planned) == len(measuring) > 0
    assert sum(map(len, planned)) <= MOST_SAMPLES
    tasks = [each.task for plan in planned for each in plan.tasks]
    assert all(task.max_new_tokens <= 128 for task in tasks)
