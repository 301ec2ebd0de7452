"""``specbench check``: what it prints and writes, and requests that it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.check import check as checking
from specbench.check import greedy, timing
from specbench.errors import UsageError
from specbench.experiment import execute

from ..engine.tiny import blurred, build, config, pair_of
from .conftest import Result

Cli = Callable[..., Result]
SMALL = ("--samples", "96", "--draft-length", "2", "--device", "cpu", "-o", "out")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Put a tiny pair in the place of the bundled one; keep the formats it is loaded in."""
    loaded: list[str] = []

    def load_pair(spec: Any, loading: Any) -> Any:
        loaded.append(loading.dtype)
        settings = config("llama", initializer_range=0.25)
        target = build(settings)
        draft = blurred(target, noise=0.04)
        dtype = getattr(torch, loading.dtype)
        return pair_of(target.to(dtype), draft.to(dtype))

    monkeypatch.setattr(execute, "load_pair", load_pair)
    for module in (execute, checking):
        monkeypatch.setattr(module, "check_memory", lambda *_: None)
    monkeypatch.setattr(timing, "copy_bandwidth", lambda device, size: 1e12)
    monkeypatch.setattr(timing, "TOKENS", 16)
    monkeypatch.setattr(greedy, "LIMIT", 24)
    (tmp_path / "prompts.txt").write_text("a cat\nThe dog 7 ran\nx")
    return loaded


def test_tables_and_file_of_two_formats(cli: Cli, tiny: list[str]) -> None:
    result = cli(
        "check", "-m", "autoregressive,static", "--weight", "0.6", "--prompts", "prompts.txt",
        "--dtype", "bfloat16", *SMALL,
    )  # fmt: skip
    assert result.code == 0, result.err
    assert tiny == ["float32", "bfloat16"]
    assert "static w=0.6" in result.out
    assert result.out.splitlines()[-1] == "results: out/check.json"
    rounds = result.out[: result.out.index("The rest")]
    assert max(map(len, rounds.splitlines())) <= 100
    found = json.loads(Path("out/check.json").read_text())
    assert found["check"]["working_dtype"] == "bfloat16"
    assert found["check"]["samples"] == 96
    findings = found["findings"]
    assert sum(found["verdicts"].values()) == len(findings)
    greedy_ones = [f for f in findings if f["part"] == "greedy"]
    assert [f["subject"] for f in greedy_ones] == ["T=0, float32"] * 2 + ["T=0, bfloat16"] * 2
    assert [f["verdict"] for f in greedy_ones] == ["ok", "ok", "report", "report"]
    alone = {f["name"] for f in findings if f["subject"] == "autoregressive, T=1"}
    assert alone == {"next token", "tokens"}
    law = next(f for f in findings if f["subject"].startswith("static") and f["name"] == "drafts")
    assert law["facts"]["draws"] > 300
    assert law["facts"]["p_value"] > law["facts"]["alpha"] > law["facts"]["control"]
    assert 0 < law["facts"]["share"] <= 1
    (time,) = (f["facts"] for f in findings if f["part"] == "time")
    assert time["tokens_per_second"] > 0 and 0 < time["bandwidth_share"] < 1


def test_where_float32_does_not_fit(
    cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def little(spec: Any, loading: Any, *_: Any) -> None:
        if loading.dtype == "float32":
            raise UsageError("mini needs 9 GiB")

    monkeypatch.setattr(checking, "check_memory", little)
    result = cli("check", "-m", "sd", "--prompts", "prompts.txt", "--dtype", "bfloat16", *SMALL)
    assert result.code == 0, result.out
    assert tiny == ["bfloat16"]
    assert "mini needs 9 GiB. What would be compared in float32 is compared in bf" in result.err
    findings = json.loads(Path("out/check.json").read_text())["findings"]
    verdicts = {f["name"]: f["verdict"] for f in findings}
    assert verdicts["sd against autoregressive"] == verdicts["probabilities"] == "report"
    assert verdicts["drafts"] == "ok"


def test_times_that_cannot_be_true(
    cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "copy_bandwidth", lambda device, size: 1e3)
    result = cli(
        "check", "-m", "autoregressive", "--prompts", "prompts.txt", "--dtype", "float32", *SMALL
    )
    assert result.code == 1
    assert "FAILED autoregressive, float32: time: " in result.out
    assert result.err.splitlines()[-1].startswith("error: 1 of 8 comparisons failed")


def test_what_shows_nothing_is_weak(
    cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the target itself as the draft, no draw can tell p from q."""
    load = execute.load_pair

    def same(spec: Any, loading: Any) -> Any:
        pair = load(spec, loading)
        return replace(pair, draft=type(pair.target)(pair.target.model, pair.target.vocabulary))

    monkeypatch.setattr(execute, "load_pair", same)
    result = cli("check", "-m", "sd", "--prompts", "prompts.txt", "--dtype", "float32", *SMALL)
    assert result.code == 0, result.out
    assert "weak" in result.out
    findings = json.loads(Path("out/check.json").read_text())["findings"]
    weak = [f"{f['subject']}: {f['name']}" for f in findings if f["verdict"] == "weak"]
    for name in ("drafts", "acceptance", "bonus tokens", "probabilities"):
        assert f"sd, T=1: {name}" in weak
    (said,) = (line for line in result.err.splitlines() if "would not have shown" in line)
    assert f"note: {len(weak)} of {len(findings)} " in said
    assert len(said) < 200  # the tables name them


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "sdd"], "did you mean `sd`?"),
        (["--samples", "0"], "--samples must be 1 or more, not 0"),
        (["--draft-length", "0"], "--draft-length must be 1 or more"),
        (["--batch-size", "0"], "--batch-size must be 1 or more"),
        (["--limit", "0"], "--limit must be 1 or more"),
        (["--engine", "fast"], "--engine cannot be 'fast'"),
        (["--prompts", "none.txt"], "none.txt"),
        (["--prompts", "prompts.txt", "-t", "mini-math"], "--prompts takes the place of --task"),
        (["--pair", "nope"], "unknown pair `nope`"),
        (["-m", "sd", "--weight", "0.5"], "--weight is a parameter of static"),
        (["-m", "autoregressive", "-o", "full"], "full is not an empty folder"),
    ],
)
def test_a_wrong_request_is_one_line(
    cli: Cli, tiny: list[str], arguments: list[str], said: str
) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    result = cli("check", *arguments)
    assert result.code == 2
    assert said in result.err
    errors = [line for line in result.err.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1
    assert not Path("results").exists()
    assert tiny == []
