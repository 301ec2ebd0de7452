"""Decoding with everything given that a test does not care about."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from specbench.decoding.loop import decode
from specbench.decoding.records import Generation
from specbench.decoding.round import Verify
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.methods import Positions, Verdict

GREEDY = Sampling(temperature=0)


def run(
    pair: LoadedPair, prompt: list[int], verify: Verify | None = None, **changes: Any
) -> Generation:
    """Decode 16 tokens at temperature 1 with N = 5, unless told otherwise."""
    settings: dict[str, Any] = {
        "sampling": Sampling(),
        "draft_length": 5,
        "max_new_tokens": 16,
        "seed": 0,
        "sample_key": "sample",
    }
    return decode(pair, verify, prompt, **(settings | changes))


def generate(pair: LoadedPair, prompt: list[int], limit: int) -> list[int]:
    """What Transformers' own greedy loop emits, the end token included."""
    model = cast(Any, pair.target.model)
    inputs = torch.tensor([prompt], device=model.device)
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),  # without it, pad tokens would be masked
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=list(pair.eos_ids) or None,
        pad_token_id=0,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def with_eos(pair: LoadedPair, *eos: int) -> LoadedPair:
    """The same models with other end tokens."""
    return replace(pair, eos_ids=frozenset(eos))


def own_draft(pair: LoadedPair) -> LoadedPair:
    """The pair's target as its own draft, with a cache of its own."""
    return replace(pair, draft=type(pair.target)(pair.target.model, pair.target.vocabulary))


def constantly(accept: float) -> Callable[[Positions, torch.Tensor], Verdict]:
    """A rule that accepts every draft with one probability and replaces by p."""

    def verify(at: Positions, x: torch.Tensor) -> Verdict:
        chance = at.p.new_full(x.shape, accept)
        return Verdict(accept=chance, residual=at.p, expected=chance)

    return verify
