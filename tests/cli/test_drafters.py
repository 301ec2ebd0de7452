"""Drafters beside each other in one run, and a target without a draft model."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.decoding.drafters.registry import DRAFTERS
from specbench.engine.pairs import get_pair
from specbench.runs.records import read_records

from .conftest import Cli

FAST = ("-t", "mini-headline", "-n", "2", "--max-new-tokens", "12", "--no-progress")


@pytest.mark.usefixtures("report_without_figures")
def test_drafters_beside_each_other(cli: Cli, tmp_path: Path) -> None:
    drafters = ("--drafter", "model,greedy,prompt-lookup")
    assert (
        cli("run", "-m", "autoregressive,sd,static,typical", *drafters, *FAST, "--output", "r").code
        == 0
    )
    shown = cli("table", "r").out
    for label in ("sd", "sd greedy", "sd prompt-lookup", "static w=0.5 prompt-lookup"):
        assert label in shown
    compared = cli("compare", "r", "--at", "acceptance")
    assert compared.code == 0 and "typical ε=0.09 δ=0.3 prompt-lookup" in compared.out
    mixed = cli("plot", "pareto", "r")
    assert (mixed.code, mixed.err.count("\n")) == (2, 1)
    assert cli("plot", "pareto", "r", "--drafter", "prompt-lookup").code == 0
    assert Path("r/figures/pareto-prompt-lookup.png").is_file()
    assert cli("report", "r", "--output", "r.html").code == 0


def test_copying_drafters_load_no_draft_model_of_a_pair(cli: Cli) -> None:
    assert cli("run", "-m", "sd", *FAST, "--drafter", "prompt-lookup", "--output", "r").code == 0
    config = json.loads(Path("r/config.json").read_text())
    assert config["pair"].keys() & {"target", "draft"} == {"target"}
    assert config["pair"]["name"] == "mini"


def test_a_target_without_a_draft_model(cli: Cli) -> None:
    how = ("--target", get_pair("mini").target, *FAST, "-n", "1")
    result = cli("run", *how, "--drafter", "prompt-lookup", "--output", "r")
    assert result.code == 0
    assert "note: diversed is skipped with prompt-lookup" in result.err
    records = list(read_records(Path("r")))
    assert {record["drafter"] for record in records} == {None, "prompt-lookup"}
    for arguments in (("-m", "diversed"), ("--drafter", "model")):
        refused = cli("run", "--drafter", "prompt-lookup", *how, *arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1), arguments


@pytest.mark.parametrize("command", [("train",), ("finetune-draft",), ("bench",), ("check",)])
def test_commands_that_need_a_draft_model_say_so(command: Any, cli: Cli) -> None:
    refused = cli(*command, "--target", get_pair("mini").target)
    assert (refused.code, refused.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_is_listed_run_priced_and_decided_on(name: str, cli: Cli) -> None:
    assert name in cli("list", "drafters").out and name in cli("check", "--help").out
    texts = ("-t", "mini-headline", "-n", "10", "--max-new-tokens", "8", "--no-progress")
    ran = cli("run", "-m", "sd", "--drafter", name, "--draft-length", "3", *texts, "--output", "r")
    assert ran.code == 0, ran.err
    priced = cli("price", "r", "--drafter", name, "--draft-length", "3")
    assert priced.code == 0, priced.err  # 1 if the recorded rounds contradict the price
    assert f"sd, {name}, N = 3" in priced.out
    machine = ("--machine", "h100", "--batch-size", "1", "--draft-length", "2,3")
    decided = cli("decide", "r", "--drafter", name, *machine, "--output", "d")
    assert decided.code == 0, decided.err
    assert f"{name}: speculation " in decided.out
