"""Decoding with defaults for everything that a test does not specify."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from specbench.decoding.loop import DecodeOptions, Request, decode, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.methods import Positions, Rule, Verdict

GREEDY = Sampling(temperature=0)


OPTIONS = DecodeOptions(Sampling(), draft_length=5, max_new_tokens=16)


def run(
    pair: LoadedPair,
    prompt: list[int],
    rule: Rule | None = None,
    sample_key: str = "sample",
    **changes: Any,
) -> Generation:
    """Decode 16 tokens at temperature 1 with N = 5 by default."""
    return decode(pair, rule, Request(prompt, sample_key), replace(OPTIONS, **changes))


def run_all(
    pair: LoadedPair, rule: Rule | None, requests: list[Request], **changes: Any
) -> list[Generation]:
    """Decode texts like ``run``, in the order of the requests."""
    found = dict(decode_all(pair, rule, requests, replace(OPTIONS, **changes)))
    return [found[number] for number in range(len(requests))]


def said(generation: Generation) -> tuple[Any, ...]:
    """All fields except the times."""
    counts = [(r.proposed, r.accepted, r.emitted) for r in generation.rounds]
    return generation.token_ids, generation.text, generation.stopped_by, counts


def generate(pair: LoadedPair, prompt: list[int], limit: int) -> list[int]:
    """The output of Transformers' own greedy loop, including the end token."""
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
    """The pair's target as its own draft, with a separate cache."""
    return replace(pair, draft=type(pair.target)(pair.target.model, pair.target.vocabulary))


def constantly(accept: float) -> Callable[[Positions, torch.Tensor], Verdict]:
    """A rule that accepts every draft with one probability and replaces it by a draw from p."""

    def verify(at: Positions, x: torch.Tensor) -> Verdict:
        chance = at.p.new_full(x.shape, accept)
        return Verdict(accept=chance, residual=at.p, expected=chance)

    return verify
