"""Texts that a check samples with the real loop, and where each of their tokens came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.check.passes import plain_pass
from specbench.decoding.loop import DecodeOptions, Request, decode, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import LoadedPair
from specbench.heads.bind import BoundMethod
from specbench.methods import Rule

ROUNDS = 2  # whole rounds that the texts have at least, so that caches are rewound and overwritten
LEAD = 24  # tokens after a prompt among which rounds may begin


class Context(NamedTuple):
    """The tokens of a prompt, and the name of its task and example."""

    name: str
    prompt: Sequence[int]


class Sampled(NamedTuple):
    """How rounds are sampled and compared."""

    texts: int  # of each method, from all prompts together
    draft_length: int  # N
    batch_size: int
    seed: int  # decides all draws, those of the tests included
    alpha: float  # probability of a false alarm of one test
    exact: bool = True  # False where the format is too coarse for probabilities to be compared


def decode_one(
    pair: LoadedPair,
    context: Context,
    tokens: int,
    *,
    rule: Rule | None = None,
    draft_length: int = 0,
    temperature: float = 0.0,
) -> Generation:
    """Decode a prompt once, by default greedily and by the target alone."""
    options = DecodeOptions(Sampling(temperature=temperature), draft_length, tokens)
    return decode(pair, rule, Request(context.prompt, f"check/{context.name}"), options)


def informative(pair: LoadedPair, context: Context) -> Context:
    """Extend a prompt greedily to where the target is unsure and the draft differs.

    Right after a prompt the next token is often certain, and then no fault shows in it.
    """
    known = decode_one(pair, context, LEAD).token_ids
    text = [*context.prompt, *known, 0]
    p, q = (
        plain_pass(runner, [text], last=len(known) + 1).logits[0].softmax(-1)
        for runner in (pair.target, pair.draft)
    )
    entropy = torch.special.entr(p).sum(-1)
    best = int(((p - q).abs().sum(-1) * entropy).argmax())
    return Context(context.name, [*context.prompt, *known[:best]])


def sample(
    pair: LoadedPair, method: BoundMethod, context: Context, sampling: Sampling, how: Sampled
) -> list[Generation]:
    """Decode one prompt ``how.texts`` times, each with draws of its own.

    There are no end tokens: an end token is no part of its text, and a test of all other tokens
    would be biased.
    """
    requests = [Request(context.prompt, f"check/{context.name}/{i}") for i in range(how.texts)]
    options = DecodeOptions(
        sampling,
        how.draft_length,
        ROUNDS * (how.draft_length + 1) + 1,
        seed=how.seed,
        batch_size=min(how.batch_size, how.texts),
        control=method.control,
    )
    decoded = decode_all(replace(pair, eos_ids=frozenset()), method.rule, requests, options)
    return [generation for _, generation in sorted(decoded, key=lambda found: found[0])]


ACCEPTED, CORRECTED, OWN = range(3)
"""A token is an accepted draft, replaces a rejected one, or is the target's own: a bonus token, or
any token where nothing is drafted."""


class Tokens(NamedTuple):
    """The tokens of K texts of T tokens, ``[K, T]`` each."""

    tokens: Tensor
    kind: Tensor
    drafted: Tensor  # what was judged at this position; 0 where nothing was
    place: Tensor  # in its round, from 0
    expected: Tensor  # acceptance probability as reported; NaN where nothing was judged
    weight: Tensor  # weight on the target as reported, likewise


def tokens_of(generations: Sequence[Generation]) -> Tokens:
    """Return the tokens of texts that all end at the same length limit."""
    rows = [list(_tokens(generation)) for generation in generations]
    return Tokens(*(torch.tensor([[token[i] for token in row] for row in rows]) for i in range(6)))


def _tokens(generation: Generation) -> Iterator[tuple[int, int, int, int, float, float]]:
    remaining = iter(generation.token_ids)
    for record in generation.rounds:
        for place in range(record.emitted):
            token = next(remaining)
            accepted = place < record.accepted
            drafted = token if accepted else record.rejected
            if drafted is None:
                yield token, OWN, 0, place, nan, nan
                continue
            kind = ACCEPTED if accepted else CORRECTED
            weight = record.weights[place] if record.weights else nan
            yield token, kind, drafted, place, record.expected[place], weight
