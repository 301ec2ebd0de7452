"""A head in the loop: a constant one is the static ensemble, any other weighs token by token."""

from functools import partial
from math import log

import pytest
import torch

from specbench.decoding.sampling import Sampling
from specbench.heads.head import Head
from specbench.methods.rules import diversed, sd, static

from ..engine.tiny import FAMILIES, random_prompt, tiny_pair
from .helpers import constantly, run

KEYS = [f"sample {i}" for i in range(6)]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_k=20),
    Sampling(top_p=0.9),
]


def constant_head(weight: float) -> Head:
    head = Head("linear", (32, 32))
    head.summary.bias.data = torch.tensor([0, log(weight / (1 - weight))])
    return head.requires_grad_(False)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weight", [0.2, 0.7])
def test_a_constant_head_is_static(family: str, weight: float, sampling: Sampling) -> None:
    decode = partial(run, tiny_pair(family), random_prompt(5), sampling=sampling)
    learned = partial(diversed, head=constant_head(weight).weigh)
    fixed = partial(static, weight=weight)
    for key in KEYS[:2]:
        one, other = decode(learned, sample_key=key), decode(fixed, sample_key=key)
        assert one.token_ids == other.token_ids
        assert [r.accepted for r in one.rounds] == [r.accepted for r in other.rounds]
        for mine, theirs in zip(one.rounds, other.rounds, strict=True):
            assert mine.weights == pytest.approx(theirs.weights, abs=1e-6)
            assert mine.expected == pytest.approx(theirs.expected, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weight_at_each_end_is_sd_and_the_draft(family: str) -> None:
    decode = partial(run, tiny_pair(family), random_prompt(5))
    assert decode(partial(static, weight=1.0)).token_ids == decode(sd).token_ids
    drafted = decode(partial(static, weight=0.0))
    assert all(record.accepted == record.proposed for record in drafted.rounds)


def test_the_weight_of_a_token_does_not_see_the_token() -> None:
    """Weights up to and including a rejected position are functions of the tokens before it."""
    generator = torch.Generator().manual_seed(0)
    head = Head("linear", (32, 32)).requires_grad_(False)
    head.summary.weight.copy_(torch.randn(2, 64, generator=generator) / 8)
    pair, prompt = tiny_pair("llama"), random_prompt(5)
    first = {
        run(pair, prompt, partial(diversed, head=head.weigh), sample_key=key).rounds[0].weights[0]
        for key in KEYS
    }
    drafts = {tuple(run(pair, prompt, constantly(1), sample_key=key).token_ids[:1]) for key in KEYS}
    assert len(drafts) > 1
    assert max(first) - min(first) < 1e-5


def test_a_head_weighs_token_by_token() -> None:
    generator = torch.Generator().manual_seed(0)
    head = Head("linear", (32, 32)).requires_grad_(False)
    head.summary.weight.copy_(torch.randn(2, 64, generator=generator) / 8)
    output = run(tiny_pair("qwen3"), random_prompt(5), partial(diversed, head=head.weigh))
    weights = [weight for record in output.rounds for weight in record.weights]
    assert all(0 <= weight <= 1 for weight in weights)
    assert max(weights) - min(weights) > 0.1
