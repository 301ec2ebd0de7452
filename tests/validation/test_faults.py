"""Faults planted in the loop and in drafters: each is found by the comparison that is named here.

An acceptance that is a little too likely, a correction that is not independent of the acceptance
before it, and a wrong proposal of a lossless drafter change no law that counts could refute with so
few texts. The random numbers of the texts show them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch

from specbench.decoding import drafting, loop
from specbench.decoding import round as rounds
from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.lookup import LookupDrafter
from specbench.decoding.drafters.model import GreedyDrafter, ModelDrafter
from specbench.decoding.drafters.registry import DRAFTERS, parse_kind
from specbench.decoding.heads.bind import bind
from specbench.decoding.modules.module import MODULES
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.methods import Rule
from specbench.methods.serving import fly
from specbench.validation import texts
from specbench.validation.check import WHOLE, findings_or_crash
from specbench.validation.findings import FAILED, NO_LAW, Finding
from specbench.validation.outputs import choose_ends
from specbench.validation.rounds import Case, check_rounds
from specbench.validation.texts import Context, Setup, after_rounds

from ..decoding.helpers import module_drafter
from ..engine.tiny import blurred, build, config, pair_of, random_prompt

Patch = pytest.MonkeyPatch
N, VOCABULARY = 3, 12
ALPHA = 1e-7
# Prompts of different lengths, which repeat themselves, so that a prompt lookup has proposals.
CONTEXTS = [Context(f"task/{n}", 2 * random_prompt(n, VOCABULARY)) for n in (4, 9)]


@cache
def pair() -> LoadedPair:
    sizes = {"num_hidden_layers": 1, "vocab_size": VOCABULARY}
    target = build(config("llama", initializer_range=0.25, **sizes))
    return pair_of(target, blurred(target, noise=0.05))


def findings(
    drafter: DrafterKind,
    *,
    whole: bool = True,
    method: str = "sd",
    texts: int = 100,
    rule: Rule | None = None,
    **parameters: Any,
) -> list[Finding]:
    """Compare whole texts, or two rounds each, of a method or of a rule that claims to be it."""
    ends = choose_ends(pair(), CONTEXTS, WHOLE, N + 3) if whole else after_rounds(N)
    sampling = WHOLE if whole else Sampling()
    bound = bind(method, parameters, pair())
    bound = bound._replace(rule=rule or bound.rule)
    setup = Setup(pair(), bound, sampling, drafter, N, ends, texts=texts, batch_size=32)
    case = Case(method, [(setup, CONTEXTS)])
    return list(findings_or_crash(case.subject, lambda: check_rounds(case, ALPHA)))


def failures(compared: list[Finding]) -> set[str]:
    return {finding.name for finding in compared if finding.verdict == FAILED}


BY_ROUND = {"block": {}, "fly": {"window": 1, "entropy": 0.3}}


@pytest.mark.parametrize(
    ("name", "method", "parameters"),
    [
        *((name, "static", {"weight": 0.4}) for name in (*DRAFTERS, *MODULES)),
        # Rules of whole rounds know only how the drafts came about: drawn, copied or by a module.
        *(
            (name, *rule)
            for name in ("model", "prompt-lookup", "eagle3")
            for rule in BY_ROUND.items()
        ),
    ],
)
def test_correct_outputs_of_every_drafter_pass(name, method, parameters):
    drafter = module_drafter(pair(), name) if name in MODULES else parse_kind(name)
    compared = findings(drafter, method=method, **parameters)
    assert not failures(compared)
    verdicts = {finding.name: finding.verdict for finding in compared}
    assert verdicts["outputs"] == verdicts["endings"] == verdicts["replays"] == "ok"


def test_outputs_of_fly_show_a_rejection_that_is_not_deferred():
    """The law of the outputs is that of rounds; other comparisons of `fly` have none."""
    never = partial(fly, window=1, entropy=9.0)
    parameters = {"window": 1, "entropy": 0.3}
    compared = findings(ModelDrafter(), method="fly", texts=400, rule=never, **parameters)
    verdicts = {finding.name: finding.verdict for finding in compared}
    assert verdicts["outputs"] == FAILED and verdicts["tokens"] == NO_LAW


class PastTheEnd(loop.Batch):
    """Looks for end tokens only where a round ends."""

    def _append(self, text: Any, report: Any, *laws: Any) -> Any:
        inside = report.accepted and report.new_tokens[: report.accepted]
        ends, pair = self._pair.eos_ids, self._pair
        if inside:
            self._pair = replace(pair, eos_ids=ends - set(inside))
        reason = super()._append(text, report, *laws)
        self._pair = pair
        return reason


def planted(module: Any, name: str, fault: Callable[..., Any]) -> Callable[[Patch], None]:
    """Replace a function by one that is called with the right one first."""
    right = getattr(module, name)
    return lambda patch: patch.setattr(module, name, lambda *args: fault(right, *args))


def reuses_the_number_of_the_last_acceptance(right, rule, state, *args):
    numbers = state.uniforms.clone()
    numbers[:, -1] = numbers[:, -2]
    return right(rule, state._replace(uniforms=numbers), *args)


def accepts_more(factor, right, rule, *args):
    def likelier(at, x):
        verdict = rule(at, x)
        return verdict._replace(accept=(factor * verdict.accept).clamp_max(1))

    return right(likelier, *args)


def limits(change, right, pair, rule, requests, options):
    limit = options.max_new_tokens + change
    return right(pair, rule, requests, replace(options, max_new_tokens=limit))


class SoftGreedy(GreedyDrafter):
    """Proposes the likeliest tokens, and says that it drew them."""

    def __call__(self, *args: Any) -> drafting.Drafts:
        drafts = super().__call__(*args)
        return drafts._replace(q=drafts.q1)


class TooLong(LookupDrafter):
    """Copies a token more than there is."""

    def __call__(self, pair: Any, state: Any, *args: Any) -> drafting.Drafts:
        drafts = super().__call__(pair, state, *args)
        assert drafts.proposed is not None
        proposed = (drafts.proposed + 1).clamp_max(drafts.x.shape[1])
        judged = torch.arange(drafts.x.shape[1]) < proposed[:, None]
        q = torch.zeros_like(drafts.q).scatter(2, drafts.x[..., None], judged[..., None].float())
        return drafts._replace(q=q, q1=q, proposed=proposed)


MODEL, LOOKUP = ModelDrafter(), LookupDrafter()
REUSED = planted(rounds, "verify", reuses_the_number_of_the_last_acceptance)
NEWEST = planted(  # drafts from the newest token alone
    *(drafting, "draft_token"),
    lambda right, draft, state, *args: right(draft, state._replace(last=state.last[:, -1:]), *args),
)
OLD_STATES = planted(
    *(rounds, "verify"),
    lambda right, rule, state, *args: right(rule, state, *args)._replace(states=state.states),
)
FAULTS: list[tuple[Callable[[Patch], None], Any, bool, str]] = [
    (lambda patch: patch.setattr(loop, "Batch", PastTheEnd), MODEL, True, "endings"),
    (REUSED, MODEL, False, "replays"),
    (REUSED, LOOKUP, True, "replays"),
    (planted(rounds, "verify", partial(accepts_more, 1.03)), MODEL, False, "replays"),
    (NEWEST, MODEL, False, "probabilities"),
    *((OLD_STATES, module_drafter(pair(), kind), False, "probabilities") for kind in MODULES),
    *(
        (planted(texts, "decode_all", partial(limits, change)), MODEL, True, "endings")
        for change in (-1, 1)
    ),
    # The drafter is the fault.
    (lambda patch: None, SoftGreedy(), True, "probabilities"),
    (lambda patch: None, TooLong(1, 3), True, "replays"),
]


@pytest.mark.parametrize(("plant", "drafter", "whole", "name"), FAULTS)
def test_a_planted_fault_is_found(monkeypatch, plant, drafter, whole, name):
    plant(monkeypatch)
    assert name in failures(findings(drafter, whole=whole))


def test_a_smaller_fault_is_below_the_printed_share_and_a_crash_is_a_finding(monkeypatch):
    """What is not found is smaller than the limit of the comparison, which is below 1 %."""

    def crash():
        raise IndexError("index 8 is out of bounds")

    (finding,) = findings_or_crash("sd, T=1", crash)
    assert (finding.verdict, finding.subject) == (FAILED, "sd, T=1")
    assert "IndexError (index 8 is out of bounds) in test_faults.py, line" in finding.sentence
    planted(rounds, "verify", partial(accepts_more, 1.0005))(monkeypatch)
    compared = findings(MODEL, whole=False)
    assert not failures(compared)
    (replays,) = (finding for finding in compared if finding.name == "replays")
    assert 0.0005 < replays.facts["share"] < 0.01
