"""Sweeps of parameters and weights, and ``specbench transfer``."""

import csv
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.experiment import forecast

from .conftest import Cli

ROOT = Path(__file__).parents[2]
MOST_SAMPLES = 400  # of `make run`, which the README promises to take one to three minutes

FAST = ("-t", "mini-math", "--limit", "2", "--no-progress", "--output", "r")
TRANSFER = ("transfer", "-t", "mini-headline,mini-math", "--limit", "2", "--output", "r")


def variants(folder: Path, *names: str) -> list[tuple[str, ...]]:
    """Return the method and some parameters of every cell in table order, numbers as floats."""
    with (folder / "samples.csv").open() as file:
        rows = [(row["method"], *(row[name] for name in names)) for row in csv.DictReader(file)]
    return list(dict.fromkeys(rows))


@pytest.mark.parametrize(
    ("line", "columns", "expected"),
    [
        (
            "sweep --parameter budget --values 0,0.25",
            ("budget", "head"),
            [
                ("autoregressive", "", ""),
                ("sd", "", ""),
                ("diversed", "", "bundled"),
                ("mentored", "0.0", ""),
                ("mentored", "0.25", ""),
            ],
        ),
        (
            "sweep --parameter divergence --values 1 -m sd,static --weights 0.2,0.6",
            ("divergence", "weight"),
            [("sd", "", ""), ("cactus", "1.0", ""), ("static", "", "0.2"), ("static", "", "0.6")],
        ),
        # All methods with the parameter are swept, unless some are named.
        (
            "sweep --parameter weight --values 0.3,0.7 -m sd",
            ("weight", "gate"),
            [
                ("sd", "", ""),
                *(("static", w, "") for w in ("0.3", "0.7")),
                *(("gated", w, "0.1") for w in ("0.3", "0.7")),
            ],
        ),
        ("sweep --parameter weight --values 0.3 -m static", ("weight",), [("static", "0.3")]),
        # Other parameters apply to every method that has them.
        (
            "sweep --parameter gate --values 0.5 --set weight=0.2 -m static,lossy --head untrained",
            ("gate", "weight", "head"),
            [
                ("static", "", "0.2", ""),
                ("lossy", "", "", ""),
                ("gated", "0.5", "0.2", ""),
                ("gated-diversed", "0.5", "", "untrained"),
            ],
        ),
        (
            "sweep-weights --weights 0,1 --draft-length 3,5 -m autoregressive,sd,static",
            ("weight", "draft_length"),
            [
                ("autoregressive", "", "0"),
                *(("sd", "", n) for n in "35"),
                *(("static", w, n) for w in ("0.0", "1.0") for n in "35"),
            ],
        ),
        (
            "sweep-weights --weights 0,1 -m gated,sd",
            ("weight",),
            [("gated", "0.5"), ("sd", ""), ("static", "0.0"), ("static", "1.0")],
        ),
        # `run` combines the values of several parameters.
        (
            "run -m static,lossy --set weight=0.2,0.8 --set lenience=0.3",
            ("weight", "lenience"),
            [("static", "0.2", ""), ("static", "0.8", ""), ("lossy", "", "0.3")],
        ),
    ],
)
def test_a_grid_is_measured_with_its_anchors(
    cli: Cli,
    engine: Any,
    tmp_path: Path,
    line: str,
    columns: tuple[str, ...],
    expected: list[tuple[str, ...]],
) -> None:
    result = cli(*line.split(), *FAST)
    assert result.code == 0, result.err
    measured = variants(tmp_path / "r", *columns)
    if expected[0][0] != "autoregressive":  # it is measured with any draft
        assert measured.pop(0) == ("autoregressive", *("" for _ in columns))
    assert measured == expected


@pytest.mark.parametrize(("rule", "first"), [((), "0.0"), (("--set", "rule=diff"), "-1.0")])
def test_default_values_come_from_the_parameter(
    cli: Cli, engine: Any, tmp_path: Path, rule: tuple[str, ...], first: str
) -> None:
    assert cli("sweep", "--parameter", "alpha", *rule, "-m", "speccascade", *FAST).code == 0
    alphas = [alpha for _, alpha in variants(tmp_path / "r", "alpha") if alpha]
    assert (len(alphas), alphas[0]) == (11, first)


def matrix(folder: Path) -> dict[tuple[str, str, str], str]:
    with (folder / "transfer.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["trained_on"], row["task"], row["metric"]): row["value"] for row in rows}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with heads for two tasks, one of which is not measured, and an unrelated folder."""
    for name in ("mini-math", "elsewhere"):
        (tmp_path / "h" / name).mkdir(parents=True)
        (tmp_path / "h" / name / "head.safetensors").touch()
        about = {"kind": "mlp", "task": name}
        (tmp_path / "h" / name / "head.json").write_text(json.dumps(about))
    (tmp_path / "h" / "notes").mkdir()
    return tmp_path / "h"


def test_every_head_serves_every_task(cli: Cli, engine: Any, tmp_path: Path, folder: Path) -> None:
    result = cli(*TRANSFER, "--head", "h")
    assert result.code == 0
    assert "heads: mini-math, elsewhere h (mlp)" in result.err
    assert engine.heads == [Path("h/mini-math"), Path("h/elsewhere")]
    found = matrix(tmp_path / "r")
    assert list(dict.fromkeys(head for head, _, _ in found)) == ["sd", "mini-math", "elsewhere"]
    assert {task for _, task, _ in found} == {"mini-headline", "mini-math"}
    assert {metric for _, _, metric in found} == {"quality", "draft_acceptance_rate"}
    assert float(found["elsewhere", "mini-math", "draft_acceptance_rate"]) == 0.6
    assert "| mini-math |" in (tmp_path / "r" / "transfer.md").read_text()
    assert "no head (sd)" in result.out and "mini-headline, ROUGE-2 (n = 2)" in result.out
    drawn = {kind: tmp_path / "r" / "figures" / f"transfer.{kind}" for kind in ("png", "svg")}
    first = {kind: path.read_bytes() for kind, path in drawn.items()}
    assert cli("plot", "transfer", "r").code == 0
    assert {kind: path.read_bytes() for kind, path in drawn.items()} == first


def test_a_pair_s_own_heads_are_compared_by_default(cli: Cli, engine: Any, tmp_path: Path) -> None:
    engine.failing = {20: ValueError("broken")}
    result = cli(*TRANSFER)
    assert result.code == 1  # a sample failed; the matrix contains the others
    heads = list(dict.fromkeys(head for head, _, _ in matrix(tmp_path / "r")))
    # Rows are in task order, so that a head's own task is on the diagonal.
    assert heads == ["sd", "mini-headline", "mini-math", "mini-code", "mini-news"]
    cli("run", "-m", "sd,diversed", "-t", "mini-math", "--limit", "2", "--output", "other")
    assert cli("plot", "transfer", "other").code == 2


def test_make_run_plans_few_samples_of_bundled_tasks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []

    def stop(plan: Any) -> None:
        planned.append(plan)
        raise UsageError("it is planned")

    monkeypatch.setattr(forecast, "forecast", stop)
    make = ["make", "-C", str(ROOT), "--dry-run", "run"]
    recipe = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    measuring = re.findall(r"/specbench ((?:run|sweep|transfer|suite)\S* .*)", recipe)
    for line in measuring:
        cli(*shlex.split(line), "--dry-run")
    assert len(planned) == len(measuring) > 0
    assert sum(map(len, planned)) <= MOST_SAMPLES
    tasks = [each.task for plan in planned for each in plan.tasks]
    assert all(task.max_new_tokens <= 128 for task in tasks)
