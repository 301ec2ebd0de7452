"""Acceptance is what it is forced to be, and everything else of a rule stays."""

from math import sqrt
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import utils

from specbench.bench.forced import DECISION, CannotForceError, forced, forced_in_transformers
from specbench.bench.plan import TRANSFORMERS, System
from specbench.bench.transformers_loops import ENSEMBLE, transformers_decoder
from specbench.bench.turn import Turn, specbench_decoder
from specbench.engine.settings import EAGER
from specbench.methods import Positions
from specbench.methods.rules import sd

from ..engine.tiny import random_prompt, tiny_pair
from .benches import bench_of

WEIGHT = (("weight", 0.5),)
TEXTS = 3


def positions(count: int = 4, vocabulary: int = 6) -> tuple[Positions, torch.Tensor]:
    torch.manual_seed(0)
    p, q = torch.rand(2, count, vocabulary).softmax(-1)
    hidden = torch.zeros(count, 2)
    return Positions(p, q, p, q, hidden, hidden, False), torch.arange(count)


def decoded(system: System, tokens: int = 200) -> Turn:
    """Some texts by a tiny pair, one at a time, as assisted generation takes no more."""
    pair, bench = tiny_pair("llama"), bench_of(system)
    make: Any = transformers_decoder if system.engine == TRANSFORMERS else specbench_decoder
    decode = make(bench, system, pair)
    turns = [decode([random_prompt(5 + text)], tokens, str(text)) for text in range(TEXTS)]
    values = [sum(getattr(turn, name) for turn in turns) for name in Turn.__dataclass_fields__]
    return Turn(*values)


def test_only_the_acceptance_of_a_verdict_is_another() -> None:
    at, x = positions()
    own, other = sd(at, x), forced(sd, 0.25)(at, x)
    assert other.accept.tolist() == [0.25] * len(x)
    assert torch.equal(other.residual, own.residual)
    assert torch.equal(other.expected, own.expected)


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    "system",
    [System(EAGER, "sd"), System(TRANSFORMERS, "sd"), System(TRANSFORMERS, "static", WEIGHT)],
    ids=["specbench", "assisted", "assisted with a weight"],
)
def test_as_many_drafts_are_accepted_as_asked_for(system: System, rate: float) -> None:
    if system.method == "static" and not hasattr(GenerationConfig(), ENSEMBLE):
        pytest.skip("this version of Transformers has no ensemble")
    wanted = System(system.engine, system.method, system.parameters, 5, rate)
    turn = decoded(wanted, tokens=200 if 0 < rate < 1 else 30)
    spread = sqrt(rate * (1 - rate) / turn.judged)
    assert abs(turn.accepted / turn.judged - rate) <= 4 * spread
    assert turn.judged > 50


def test_assisted_generation_accepts_by_the_draws_of_our_own_loop() -> None:
    """Both take as many rounds; those of Transformers are counted without the first."""
    ours, theirs = (decoded(System(name, "sd", (), 5, 0.6), 60) for name in (EAGER, TRANSFORMERS))
    assert ours.rounds == theirs.rounds + TEXTS


def test_unforced_acceptance_is_the_models_own() -> None:
    """The tiny draft agrees with its target on nearly all tokens."""
    for engine in (EAGER, TRANSFORMERS):
        turn = decoded(System(engine, "sd", (), 5), 60)
        assert 0.5 < turn.accepted / turn.judged < 1, engine


def test_the_draft_decides_what_it_did_before_once_the_context_is_left() -> None:
    own = getattr(utils, DECISION)
    with pytest.raises(ZeroDivisionError), forced_in_transformers(0.5, []):
        assert getattr(utils, DECISION) is not own
        raise ZeroDivisionError
    assert getattr(utils, DECISION) is own


def test_a_version_that_decides_elsewhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, DECISION)
    with pytest.raises(CannotForceError, match="has no"), forced_in_transformers(0.5, []):
        pass
    with forced_in_transformers(None, []):
        assert not hasattr(utils, DECISION)
