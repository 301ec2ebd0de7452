"""``compare --against`` and its gate on whether arms sample from one distribution."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

import specbench
from specbench.analysis.verdicts import sampling
from specbench.cli import gate

RUN = (
    "run -t mini-headline --method autoregressive,sd,sharpened:target_temperature=.3 -n 16 "
    "--draft-length 2 --max-new-tokens 10 --batch-size 16 --no-progress"
)
AGAINST = "--against autoregressive --margin 50"


def test_arms_that_sample_otherwise_are_named_and_fail_the_gate(cli, monkeypatch):
    monkeypatch.setattr(sampling, "power", partial(sampling.power, trials=4))
    cli(*RUN.split(), "--repeats", "8", "--output", "r", code=0)
    result = cli("compare", "r", *AGAINST.split(), "--require", "same-distribution", code=1)
    assert "sd: texts follow the distribution of autoregressive as far as 4 texts" in result.out
    assert "sharpened t=0.3 m=0: texts differ from those of autoregressive (p" in result.out
    assert "greedy texts in " in result.out
    assert "category" in specbench.load("r")._texts  # by which texts may be divided
    rows = json.loads(cli("compare", "r", *AGAINST.split(), "--json", code=0).out)
    assert [row["same_texts"] for row in rows] == [None, "no difference seen", "texts differ"]
    assert "not shown to sample as autoregressive" in result.err
    assert "sharpened t=0.3 m=0 on mini-headline (texts differ, p = " in result.err
    Path("r/samples.jsonl").unlink()
    assert "texts differ" not in cli("compare", "r", *AGAINST.split(), code=0).out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-n", "2"), "too few texts of a prompt: --repeats 8"),
        (("-n", "2", "--temperature", "0"), "nothing is sampled at T = 0"),
    ],
)
def test_the_gate_needs_texts_that_would_show_a_fault(cli, options, reason):
    cli(*RUN.split(), *options, "--output", "r", code=0)
    error = cli("compare", "r", *AGAINST.split(), "--require", "same-distribution", code=1).err
    assert f"sd on mini-headline ({reason})" in error


def test_a_weak_comparison_does_not_pass():
    row = {"against": "plain", "seeds": float("nan"), "label": "fast", "task": "t", "run_id": "r"}
    row |= {"same_texts": "no difference seen", "same_texts_power": 0.5}
    (reason,) = gate._unlike(pd.DataFrame([row]))
    assert reason == (
        "fast on t (greedy texts in one of five answers would be seen in 50 %: raise -n or "
        "--repeats)"
    )
    strong, of_recipe = row | {"same_texts_power": 0.9}, row | {"seeds": 3}
    assert not [*gate._unlike(pd.DataFrame([strong, of_recipe]))]
