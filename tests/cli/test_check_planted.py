"""Six faults of speculative decoding, planted in the loop: the check must exit 1 and name each."""

import json
from collections.abc import Callable
from functools import cache
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.check import check as checking
from specbench.check import greedy, timing
from specbench.decoding import round as rounds
from specbench.decoding.sampling import Sampling
from specbench.engine import runner
from specbench.engine.loading import LoadedPair
from specbench.engine.runner import Runner
from specbench.experiment import execute
from specbench.heads.files import fingerprints, save_head
from specbench.heads.head import Head
from specbench.methods import verdict

from ..engine.tiny import blurred, build, config, pair_of
from .conftest import Result

Cli = Callable[..., Result]
Patch = pytest.MonkeyPatch
PROMPTS = ["a cat", "The dog 7 ran", "x", "four words stand here."]
PLAIN, EQUAL = "autoregressive against plain passes", "sd against autoregressive"


@cache
def pair() -> LoadedPair:
    target = build(config("llama", initializer_range=0.25))
    return pair_of(target, blurred(target, noise=0.04))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: Patch, tmp_path: Path) -> None:
    """Put the tiny pair in the place of the bundled one, with a head of strong opinions."""
    monkeypatch.setattr(execute, "load_pair", lambda spec, loading: pair())
    for module in (execute, checking):
        monkeypatch.setattr(module, "check_memory", lambda *_: None)
    monkeypatch.setattr(timing, "copy_bandwidth", lambda device, size: 1e12)
    monkeypatch.setattr(timing, "TOKENS", 16)
    monkeypatch.setattr(greedy, "LIMIT", 24)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    head = Head("linear", (32, 32)).requires_grad_(False)
    noise = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    head.summary.weight.copy_(noise / 8)
    head.summary.bias.copy_(torch.tensor([0, log(2)]))
    save_head(head, tmp_path / "head", {"kind": "linear", "models": fingerprints(pair())})


def check(cli: Cli, method: str = "sd") -> tuple[Result, set[str]]:
    """Run a small check; return what it said and the names of what failed."""
    head = ("--head", "head") if method == "diversed" else ()
    result = cli(
        "check", "-m", method, "--prompts", "prompts.txt", *head, "--samples", "160",
        "--draft-length", "3", "--device", "cpu", "-o", "out",
    )  # fmt: skip
    found = json.loads(Path("out/check.json").read_text())["findings"]
    failed = {finding["name"] for finding in found if finding["verdict"] == "FAILED"}
    for name in failed:
        assert any(
            line.startswith("FAILED ") and f": {name}: " in line for line in result.out.splitlines()
        )
    assert result.code == (1 if failed else 0), result.err
    return result, failed


@pytest.mark.parametrize("method", ["sd", "diversed"])
def test_nothing_is_found_where_nothing_is_wrong(cli: Cli, method: str) -> None:
    result, failed = check(cli, method)
    assert failed == set(), result.out
    assert "weak" not in result.out + result.err


def test_a_greedy_draft_against_a_soft_q(cli: Cli, monkeypatch: Patch) -> None:
    right = rounds.propose_one

    def likeliest(*args: Any) -> rounds.Drafts:
        drafts = right(*args)
        return drafts._replace(x=drafts.q.argmax(-1))

    monkeypatch.setattr(rounds, "propose_one", likeliest)
    _, failed = check(cli)
    assert "drafts" in failed
    assert not failed & {"acceptance", "corrections", "bonus tokens", "probabilities", EQUAL}


@pytest.mark.parametrize("told", [False, True])
def test_no_temperature_on_the_draft(
    cli: Cli,
    monkeypatch: Patch,
    told: bool,
) -> None:
    """Where verification is told of it, the tokens of `sd` are right and only q is not."""
    right = rounds.propose_one

    def untempered(*args: Any) -> rounds.Drafts:
        drafts = right(*args[:-1], Sampling())
        return drafts if told else drafts._replace(q=args[-1].distributions(drafts.q1.log())[0])

    monkeypatch.setattr(rounds, "propose_one", untempered)
    result, failed = check(cli)
    assert "drafts" in failed
    assert ("probabilities" in failed) == told
    assert not failed & {"bonus tokens", PLAIN, EQUAL}
    assert "FAILED sd, T=1:" not in result.out
    assert "FAILED sd, T=0.7 top-k 20 top-p 0.9: drafts: " in result.out


def test_a_residual_that_is_not_renormalised(cli: Cli, monkeypatch: Patch) -> None:
    """It shows where the draw takes it for a distribution: what lacks goes to the last token."""

    def trusting(distribution: Tensor, uniform: Tensor) -> Tensor:
        cumulative = distribution.cumsum(-1, dtype=torch.float64)
        found = torch.searchsorted(cumulative, uniform[:, None].contiguous(), right=True)[:, 0]
        return found.clamp_max(distribution.shape[-1] - 1)

    monkeypatch.setattr(rounds, "draw", trusting)
    assert check(cli)[1] == set()
    monkeypatch.setattr(verdict, "normalise", lambda mass, fallback: mass)
    (Path("out") / "check.json").unlink()
    _, failed = check(cli)
    assert "corrections" in failed
    assert not failed & {"drafts", "acceptance", "bonus tokens", "probabilities"}


def test_a_head_that_sees_the_drafted_token(cli: Cli, monkeypatch: Patch) -> None:
    right = rounds.judge

    def one_too_far(verify: Any, drafts: Any, reading: Any, *args: Any) -> rounds.Round:
        return right(verify, drafts, reading._replace(hidden=reading.hidden.roll(-1, 1)), *args)

    monkeypatch.setattr(rounds, "judge", one_too_far)
    assert check(cli)[1] == set()  # no other method reads hidden states
    (Path("out") / "check.json").unlink()
    _, failed = check(cli, "diversed")
    assert "weights" in failed
    assert not failed & {"drafts", "bonus tokens", PLAIN, EQUAL}


def test_a_bonus_token_from_q(cli: Cli, monkeypatch: Patch) -> None:
    right = rounds.judge

    def generous(verify: Any, drafts: Any, reading: Any, *args: Any) -> rounds.Round:
        if drafts is None:
            return right(verify, drafts, reading, *args)
        p = torch.cat((reading.p[:, :-1], drafts.q[:, -1:]), 1)
        return right(verify, drafts, reading._replace(p=p), *args)

    monkeypatch.setattr(rounds, "judge", generous)
    _, failed = check(cli)
    assert "bonus tokens" in failed
    assert not failed & {"drafts", "acceptance", "corrections", "probabilities", PLAIN}


def reads_one_slot_late(monkeypatch: Patch) -> None:
    """The target's tokens go one slot too far, and one that was never written is seen."""
    right = rounds.read

    def late(target: Any, last: Tensor, length: Tensor, reach: Any, *args: Any) -> rounds.Reading:
        return right(target, last, length + 1, reach + 1, *args)

    monkeypatch.setattr(rounds, "read", late)


def sees_one_slot_more(monkeypatch: Patch) -> None:
    """A token sees the slot after its own, where a rejected draft may lie."""
    right, read = runner.visible, Runner.read

    def further(*args: Any) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "visible", lambda at, *others: right(at + 1, *others))
            return read(*args)

    monkeypatch.setattr(Runner, "read", further)


def skips_the_last_accepted_draft(monkeypatch: Patch) -> None:
    """After a round that kept all drafts, the draft model never reads the last of them."""
    right = rounds.propose_one

    def skipping(draft: Any, tokens: Tensor, *args: Any) -> rounds.Drafts:
        return right(draft, tokens[:, -1:], *args)

    monkeypatch.setattr(rounds, "propose_one", skipping)


@pytest.mark.parametrize(
    ("plant", "shown", "unharmed"),
    [
        (reads_one_slot_late, {PLAIN, "probabilities"}, set()),
        (sees_one_slot_more, {EQUAL, "probabilities"}, {PLAIN}),
        (
            skips_the_last_accepted_draft,
            {"probabilities"},
            {PLAIN, EQUAL, "tokens", "bonus tokens"},
        ),
    ],
)
def test_a_cache_that_is_off_by_one(
    cli: Cli,
    monkeypatch: Patch,
    plant: Callable[[Patch], None],
    shown: set[str],
    unharmed: set[str],
) -> None:
    plant(monkeypatch)
    result, failed = check(cli)
    assert shown <= failed
    assert not failed & unharmed
    assert "look at positions, cache slots" in result.out
