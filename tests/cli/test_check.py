"""``specbench check``: output, files, verdicts, and six planted faults that it must name."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli import check as command
from specbench.decoding import drafting
from specbench.decoding import round as rounds
from specbench.decoding.heads.head import Head, fingerprints, save_head
from specbench.decoding.sampling import Sampling
from specbench.engine import attention
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import UsageError
from specbench.experiment.loader import Loader
from specbench.validation import check as checking

from ..engine.tiny import blurred, build, config, pair_of
from ..told import DATA
from .conftest import Cli, Result

Patch = pytest.MonkeyPatch
PROMPTS = ["a cat", "The dog 7 ran", "x", "four words stand here."]
SAMPLINGS = checking.SAMPLINGS
PLAIN, EQUAL = "autoregressive against plain passes", "sd against autoregressive"


@cache
def pair(dtype: str = "float32") -> LoadedPair:
    target = build(config("llama", initializer_range=0.25, num_hidden_layers=1))
    draft = blurred(target, noise=0.05)
    loaded = pair_of(target.to(getattr(torch, dtype)), draft.to(getattr(torch, dtype)))
    return replace(loaded, eos_ids=frozenset({0}))


def load_by(monkeypatch: Patch, load_pair: Callable[..., LoadedPair]) -> None:
    """Load pairs with a function, without checking memory."""
    loader = partial(Loader, load_pair, check_memory=lambda *_: None)
    monkeypatch.setattr(checking, "Loader", loader)


@pytest.fixture(autouse=True)
def loaded(monkeypatch, tmp_path) -> list[str]:
    """Replace the bundled pair by the tiny one, with a head; return the formats of loading."""
    formats: list[str] = []

    def load_pair(spec: Any, loading: Any) -> LoadedPair:
        formats.append(loading.dtype)
        return pair(loading.dtype)

    load_by(monkeypatch, load_pair)
    monkeypatch.setattr(checking, "check_memory", lambda *_: None)
    monkeypatch.setattr(checking, "copy_bandwidth", lambda device, size: 1e12)
    monkeypatch.setattr(checking, "TOKENS", 16)
    monkeypatch.setattr(checking, "SAMPLINGS", SAMPLINGS[:1])
    monkeypatch.setattr(command, "MAX_NEW_TOKENS", 24)
    monkeypatch.setattr(command, "DRAFTERS", ("model",))  # others: tests/validation/test_faults.py
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    head = Head("linear", (32, 32)).requires_grad_(False)
    noise = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    head.summary.weight.copy_(noise / 8)
    head.summary.bias.copy_(torch.tensor([0, log(2)]))
    save_head(head, tmp_path / "head", {"kind": "linear", "models": fingerprints(pair())})
    return formats


@pytest.fixture
def both_samplings(loaded, monkeypatch) -> None:
    monkeypatch.setattr(checking, "SAMPLINGS", SAMPLINGS)


def check(cli: Cli, method: str = "sd", *more: str) -> tuple[Result, list[dict[str, Any]]]:
    head = ("--head", "head") if "diversed" in method else ()
    result = cli(
        "check", "-m", method, "--prompts", "prompts.txt", *head, "--samples", "160",
        "--draft-length", "3", "--device", "cpu", "-o", "out", *more,
    )  # fmt: skip
    path = Path("out/check.json")
    findings: list[dict[str, Any]] = json.loads(path.read_text())["findings"]
    path.unlink()  # so that the next check can use the folder
    return result, findings


def failures(cli: Cli, method: str = "sd") -> tuple[set[str], str]:
    """Run a small check; return the names of the failed comparisons, all printed, and stdout."""
    result, findings = check(cli, method)
    names = {finding["name"] for finding in findings if finding["verdict"] == "FAILED"}
    lines = [line for line in result.out.splitlines() if line.startswith("FAILED ")]
    assert all(any(f": {name}: " in line for line in lines) for name in names)
    assert result.code == (1 if names else 0), result.err
    return names, result.out


@pytest.mark.usefixtures("both_samplings")
@pytest.mark.parametrize("method", ["sd", "diversed"])
def test_a_correct_pair_passes(cli, method):
    result, findings = check(cli, method)
    assert result.code == 0
    verdicts: dict[str, set[str]] = {}
    for finding in findings:
        verdicts.setdefault(finding["name"], set()).add(finding["verdict"])
    assert set.union(*verdicts.values()) <= {"ok", "weak"}, result.out
    # A row with few draws may be weak, depending on rounding, but every comparison has power.
    assert all("ok" in seen for seen in verdicts.values()), result.out
    assert {"outputs", "endings", "replays"} <= verdicts.keys()


def test_tables_and_file_of_two_formats(cli, loaded):
    result, findings = check(
        cli, "autoregressive,static", "--set", "weight=0.6", "--dtype", "bfloat16"
    )
    assert result.code == 0, result.err
    assert loaded == ["float32", "bfloat16"]
    assert "static w=0.6" in result.out
    assert result.out.splitlines()[-2] == "results: out/check.json"
    answer = result.out.splitlines()[-1]
    assert answer.startswith("decoded correctly: no fault found in ") and "only sd was" in answer
    greedy_ones = [(f["subject"], f["verdict"]) for f in findings if f["part"] == "greedy"]
    assert greedy_ones == 2 * [("T=0, float32", "ok")] + 2 * [("T=0, bfloat16", "report")]
    alone = {f["name"] for f in findings if f["subject"] == "autoregressive, T=1"}
    assert alone == {"next token", "tokens", "replays"}
    law = next(f for f in findings if f["subject"].startswith("static") and f["name"] == "drafts")
    assert law["facts"]["draws"] > 300
    assert law["facts"]["p_value"] > law["facts"]["alpha"] > law["facts"]["control"]
    assert 0 < law["facts"]["share"] <= 1
    (time,) = (f["facts"] for f in findings if f["part"] == "time")
    assert time["tokens_per_second"] > 0 and 0 < time["bandwidth_share"] < 1


def test_a_pair_too_large_for_float32(cli, loaded, monkeypatch):
    def little(spec, loading, *_):
        if loading.dtype == "float32":
            raise UsageError("mini needs 9 GiB")

    monkeypatch.setattr(checking, "check_memory", little)
    result, findings = check(cli, "sd", "--dtype", "bfloat16", "--no-progress")
    assert result.code == 0, result.out
    assert loaded == ["bfloat16"]
    assert "mini needs 9 GiB" in result.err
    verdicts = {f["name"]: f["verdict"] for f in findings}
    assert verdicts[EQUAL] == verdicts["probabilities"] == "report"
    assert verdicts["drafts"] == "ok"


def test_without_power_a_verdict_is_weak(cli, monkeypatch):
    """With the target as its own draft, p equals q, so no test has power."""
    self_drafting = replace(pair(), draft=Runner(pair().target.model, pair().target.vocabulary))
    load_by(monkeypatch, lambda spec, loading: self_drafting)
    result, findings = check(cli)
    assert result.code == 0, result.out
    weak = [f"{f['subject']}: {f['name']}" for f in findings if f["verdict"] == "weak"]
    for name in ("drafts", "acceptance", "bonus tokens", "probabilities"):
        assert f"sd, T=1: {name}" in weak
    assert f"; {len(weak)} could not have seen one, so try more --samples" in result.out
    assert "weak: the negative control passed too" in result.out


def greedy_draft(right, *args):
    """Against a soft q."""
    drafts = right(*args)
    return drafts._replace(x=drafts.q.argmax(-1))


@pytest.mark.usefixtures("both_samplings")
@pytest.mark.parametrize("consistent", [False, True])
def test_no_temperature_on_the_draft(cli, monkeypatch, consistent):
    """If verification gets the wrong q too, the tokens of `sd` are right and only q is wrong."""
    right = drafting.draft_token

    def untempered(*args):
        drafts = right(*args[:-1], Sampling())
        if consistent:
            return drafts
        return drafts._replace(q=args[-1].distributions(drafts.q1.log())[0])

    monkeypatch.setattr(drafting, "draft_token", untempered)
    failed, out = failures(cli)
    assert "drafts" in failed
    assert ("probabilities" in failed) == consistent
    assert not failed & {"bonus tokens", PLAIN, EQUAL}
    assert "FAILED sd, T=1:" not in out
    assert "FAILED sd, T=0.7 top-k 20 top-p 0.9 min-p 0.02: drafts: " in out


def one_too_far(right, rule, state, drafts, output, *more):
    """Show the drafted token to the head."""
    shifted = output._replace(hidden=output.hidden.roll(-1, 1))
    return right(rule, state, drafts, shifted, *more)


def bonus_from_q(right, rule, state, drafts, output, *more):
    p = torch.cat((output.p[:, :-1], drafts.q[:, -1:]), 1)
    return right(rule, state, drafts, output._replace(p=p), *more)


def reads_one_slot_late(right, target, state, *args):
    """Write the target's tokens one slot too far, so that it sees a slot that was never written."""
    later = state._replace(length=state.length + 1, kv_length=state.kv_length + 1)
    return right(target, later, *args)


def sees_one_slot_more(right, *args):
    """Let a token see the slot after its own, which may contain a rejected draft."""
    visible = attention.visible
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "visible", lambda at, *others: visible(at + 1, *others))
        return right(*args)


def skips_the_last_accepted_draft(right, draft, state, *args):
    """After a round without rejection, let the draft model skip the last draft."""
    return right(draft, state._replace(last=state.last[:, -1:]), *args)


# Where each fault is planted, comparisons that it fails, and such that it does not.
FAULTS: dict[Callable[..., Any], tuple[Any, str, set[str], set[str]]] = {
    greedy_draft: (
        *(drafting, "draft_token", {"drafts"}),
        {"acceptance", "corrections", "bonus tokens", "probabilities", EQUAL},
    ),
    one_too_far: (rounds, "verify", {"weights"}, {"drafts", "bonus tokens", PLAIN, EQUAL}),
    bonus_from_q: (
        *(rounds, "verify", {"bonus tokens"}),
        {"drafts", "acceptance", "corrections", "probabilities", PLAIN},
    ),
    reads_one_slot_late: (rounds, "target_forward", {PLAIN, "probabilities"}, set()),
    sees_one_slot_more: (Runner, "forward", {EQUAL, "probabilities"}, {PLAIN}),
    skips_the_last_accepted_draft: (
        *(drafting, "draft_token", {"probabilities"}),
        {PLAIN, EQUAL, "tokens", "bonus tokens"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(cli, monkeypatch, fault):
    module, name, harmed, unharmed = FAULTS[fault]
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: fault(right, *args))
    failed, out = failures(cli, "sd,diversed" if fault is one_too_far else "sd")
    assert harmed <= failed and not failed & unharmed
    if fault is one_too_far:
        assert "FAILED sd" not in out  # no other method reads hidden states
    assert "positions, cache slots" in out or "probabilities" not in harmed


USER_RULES = (DATA / "own/rules.txt").read_text(encoding="utf-8")


def test_an_own_rule_is_compared_with_its_law(cli):
    """Without a law, acceptance is compared with what the rule said it would be."""
    Path("mine.py").write_text(USER_RULES)
    rules = ("right", "plain", "wrong", "lying")
    result, findings = check(cli, ",".join(f"mine.py:{name}" for name in rules))
    assert result.code == 1, result.out
    verdicts: dict[str, dict[str, str]] = {}
    failed: dict[str, set[str]] = {}
    for finding in findings:
        subject, name, verdict = finding["subject"], finding["name"], finding["verdict"]
        verdicts.setdefault(subject, {})[name] = verdict
        if verdict == "FAILED":
            failed.setdefault(subject.split()[0], set()).add(name)
    assert failed.keys() == {"wrong", "lying"}
    assert "acceptance" in failed["wrong"] and failed["lying"] == {"acceptance"}
    assert {*verdicts["right keep=3, T=1"].values()} <= {"ok", "weak"}
    plain = verdicts["plain keep=3, T=1"]
    untested = {name for name, verdict in plain.items() if verdict == "no law"}
    assert untested == {"next token", "tokens", "corrections", "probabilities"}
    assert plain["drafts"] == plain["acceptance"] == "ok"
    assert "plain keep=3" in result.out and "no law: not tested" in result.out
    alone, _ = check(cli, "mine.py:plain,mine.py:right,fly")
    assert alone.code == 0
    assert "what plain keep=3 emits was not tested, exact or not: add the law" in alone.out
    broken = cli("check", "-m", "mine.py:right", "--prompts", "prompts.txt", "--set", "keep=99")
    assert broken.code == 2 and "mine.py:right" in broken.err
