"""Sweeps of any number: which methods are swept, through which values, beside which others."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
FAST = ("-t", "mini-math", "--limit", "2", "--no-progress", "--output", "r")


def variants(folder: Path, *names: str) -> list[tuple[str, ...]]:
    """Method and some parameters of every cell, in the order of the table, numbers as such."""
    with (folder / "samples.csv").open() as file:
        rows = [(row["method"], *(row[name] for name in names)) for row in csv.DictReader(file)]
    return list(dict.fromkeys(rows))


def test_a_sweep_has_its_anchors_and_every_value(cli: Cli, engine: Any, tmp_path: Path) -> None:
    assert cli("sweep", "--parameter", "budget", "--values", "0,0.25", *FAST).code == 0
    assert variants(tmp_path / "r", "budget", "head") == [
        ("autoregressive", "", ""),
        ("sd", "", ""),
        ("diversed", "", "bundled"),
        ("mentored", "0.0", ""),
        ("mentored", "0.25", ""),
    ]


def test_the_front_is_measured_with_it_where_weights_are_given(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    line = ("sweep", "--parameter", "divergence", "--values", "1", "-m", "sd,static")
    assert cli(*line, "--weights", "0.2,0.6", *FAST).code == 0
    assert variants(tmp_path / "r", "divergence", "weight") == [
        ("sd", "", ""),
        ("cactus", "1.0", ""),
        ("static", "", "0.2"),
        ("static", "", "0.6"),
    ]


@pytest.mark.parametrize(
    ("methods", "swept"),
    [
        ("sd", {"static": "", "gated": "0.1"}),
        ("sd,gated", {"gated": "0.1"}),
        ("static", {"static": ""}),
    ],
)
def test_methods_that_share_a_parameter_are_all_swept_unless_some_are_named(
    cli: Cli, engine: Any, tmp_path: Path, methods: str, swept: dict[str, str]
) -> None:
    line = ("sweep", "--parameter", "weight", "--values", "0.3,0.7", "-m", methods)
    assert cli(*line, *FAST).code == 0
    found = [row for row in variants(tmp_path / "r", "weight", "gate") if row[0] != "sd"]
    assert found == [(name, w, gate) for name, gate in swept.items() for w in ("0.3", "0.7")]


def test_other_parameters_go_to_every_method_that_takes_them(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    line = ("sweep", "--parameter", "gate", "--values", "0.5", "--weight", "0.2")
    assert cli(*line, "-m", "static,lossy", "--head", "untrained", *FAST).code == 0
    assert variants(tmp_path / "r", "gate", "weight", "head") == [
        ("static", "", "0.2", ""),
        ("lossy", "", "", ""),
        ("gated", "0.5", "0.2", ""),
        ("gated-diversed", "0.5", "", "untrained"),
    ]


def test_a_method_without_a_head_is_left_out_unless_it_is_named(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    models = ("--target", "a/big", "--draft", "a/small")
    line = ("sweep", "--parameter", "gate", "--values", "0.5", *models)
    result = cli(*line, "-m", "sd", *FAST)
    assert result.code == 0
    assert "note: gated-diversed is left out on mini-math" in result.err
    assert [row[0] for row in variants(tmp_path / "r")] == ["sd", "gated"]
    assert cli(*line, "-m", "gated-diversed", *FAST[:-1], "other").code == 2


@pytest.mark.parametrize(
    ("rule", "count", "first"), [((), 11, "0.0"), (("--rule", "diff"), 11, "-1.0")]
)
def test_values_are_the_parameter_s_own_where_none_are_given(
    cli: Cli, engine: Any, tmp_path: Path, rule: tuple[str, ...], count: int, first: str
) -> None:
    assert cli("sweep", "--parameter", "alpha", *rule, "-m", "speccascade", *FAST).code == 0
    alphas = [alpha for _, alpha in variants(tmp_path / "r", "alpha")]
    assert (len(alphas), alphas[0]) == (count, first)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--parameter head", "unknown parameter `head`; choose one of `lenience`, `alpha`, `weigh"),
        ("--parameter budgets", "unknown parameter `budgets`; did you mean `budget`?"),
        ("--parameter budget --values -1", "budget cannot be -1.0: give a number from 0"),
        ("--parameter budget --values x", "--values cannot be 'x': give numbers with commas"),
        ("--parameter budget --budget 0.1", "--budget is what the sweep goes through: give --val"),
        ("--parameter weight --weights 0,1", "--weights goes beside the sweep of another method"),
        ("--parameter budget --lenience 0.5", "--lenience is a parameter of lossy, not of any"),
        ("--parameter budget --weight 0.5", "--weight is a parameter of static and gated, not of"),
        ("", "Missing option '--parameter'"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(
    cli: Cli, engine: Any, tmp_path: Path, line: str, message: str
) -> None:
    result = cli("sweep", *line.split(), *FAST)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert engine.loaded is None


def test_all_is_every_method_and_paper_those_of_the_paper(
    cli: Cli, engine: Any, tmp_path: Path
) -> None:
    found = {}
    for name in ("paper", "all"):
        line = ("run", "-m", name, "-t", "mini-math", "--limit", "1", "--no-progress")
        assert cli(*line, "--output", name).code == 0
        found[name] = [method for (method,) in variants(tmp_path / name)]
    paper = ["autoregressive", "sd", "lossy", "speccascade", "static", "diversed"]
    assert found["paper"] == paper
    assert found["all"][:6] == paper and len(found["all"]) == 14
    assert cli("run", "-t", "mini-math", "--limit", "1", "--output", "usual").code == 0
    assert [method for (method,) in variants(tmp_path / "usual")] == paper
