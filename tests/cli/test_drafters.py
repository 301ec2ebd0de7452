"""Drafters beside each other in one run, and a target without a draft model."""

import json
import re
from pathlib import Path

import pytest

from specbench.decoding.drafters.registry import DRAFTERS, parse_kind
from specbench.engine.pairs import get_pair
from specbench.runs.records import read_records

FAST = ("-t", "mini-headline", "-n", "2", "--max-new-tokens", "12", "--no-progress")


@pytest.mark.usefixtures("report_without_figures")
def test_drafters_beside_each_other(cli, tmp_path):
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


def test_a_target_without_a_draft_model(cli):
    how = ("--target", get_pair("mini").target, *FAST, "-n", "1")
    result = cli("run", *how, "--drafter", "prompt-lookup", "--output", "r", code=0)
    assert "note: diversed is skipped with prompt-lookup" in result.err
    records = list(read_records(Path("r")))
    assert {record["drafter"] for record in records} == {None, "prompt-lookup"}
    for arguments in (("-m", "diversed"), ("--drafter", "model")):
        refused = cli("run", "--drafter", "prompt-lookup", *how, *arguments)
        assert (refused.code, refused.err.count("\n")) == (2, 1), arguments


@pytest.mark.parametrize("copies", [False, True])  # with the draft model, and without it
def test_every_drafter_is_listed_run_priced_and_decided_on(copies, cli):
    names = [name for name in DRAFTERS if parse_kind(name).copies == copies]
    drafters = ("--drafter", ",".join(names))
    texts = ("-t", "mini-headline", "-n", "10", "--max-new-tokens", "8", "--no-progress")
    cli("run", "-m", "sd", *drafters, "--draft-length", "3", *texts, "--output", "r", code=0)
    pair = json.loads(Path("r/config.json").read_text())["pair"]
    assert pair["name"] == "mini" and ("draft" in pair) == (not copies)
    priced = cli("price", "r", *drafters, "--draft-length", "3", code=0)
    machine = ("--machine", "h100", "--batch-size", "1", "--draft-length", "2,3")
    decided = cli("decide", "r", *drafters, *machine, "--output", "d", code=0)
    listed, explained = cli("list", "drafters").out, cli("check", "--help").out
    for name in names:
        assert name in listed and name in explained
        assert f"sd, {name}, N = 3" in priced.out
        assert re.search(rf"^1 +{name} ", decided.out, re.MULTILINE)
