"""Texts that a check samples with the real loop, and the origin of each token."""

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

ROUNDS = 2  # minimum number of complete rounds per text, so that caches are overwritten
LEAD = 24  # maximum number of tokens between a prompt and the sampled rounds


class Context(NamedTuple):
    """The tokens of a prompt, and the name of its task and example."""

    name: str
    prompt: Sequence[int]


class SampleOptions(NamedTuple):
    """How to sample and compare rounds."""

    texts: int  # per method, over all prompts
    draft_length: int  # N
    batch_size: int
    seed: int  # for all random numbers, including those of the tests
    alpha: float  # false alarm probability of one test
    exact: bool = True  # False if the dtype is too coarse for comparing probabilities


def decode_one(
    pair: LoadedPair,
    context: Context,
    tokens: int,
    *,
    rule: Rule | None = None,
    draft_length: int = 0,
    temperature: float = 0.0,
) -> Generation:
    """Decode a prompt once, by default greedily with the target alone."""
    options = DecodeOptions(Sampling(temperature=temperature), draft_length, tokens)
    return decode(pair, rule, Request(context.prompt, f"check/{context.name}"), options)


def informative(pair: LoadedPair, context: Context) -> Context:
    """Extend a prompt greedily to a position where the target is unsure and the draft differs.

    Directly after a prompt, the next token is often certain and would reveal no fault.
    """
    return extended(pair, context, decode_one(pair, context, LEAD).token_ids)


def extended(pair: LoadedPair, context: Context, known: Sequence[int], earlier: int = 0) -> Context:
    """Extend a prompt by those of its next tokens that lead to such a position.

    The result ends so many tokens ``earlier``; those left out should be accepted if drafted.
    """
    text = [*context.prompt, *known, 0]
    p, q = (
        plain_pass(runner, [text], last=len(known) + 1).logits[0].softmax(-1)
        for runner in (pair.target, pair.draft)
    )
    entropy = torch.special.entr(p).sum(-1)
    tokens = torch.tensor([*known], dtype=torch.long, device=p.device)[:, None]
    kept = (q[:-1].gather(1, tokens) / p[:-1].gather(1, tokens))[:, 0].clamp_max(1)
    earlier = min(earlier, len(known))
    accepted = torch.stack([kept[i : i + earlier].prod() for i in range(len(known) + 1 - earlier)])
    score = ((p - q).abs().sum(-1) * entropy)[earlier:] * accepted
    return Context(context.name, [*context.prompt, *known[: int(score.argmax())]])


def sample(
    pair: LoadedPair, method: BoundMethod, context: Context, sampling: Sampling, how: SampleOptions
) -> list[Generation]:
    """Decode one prompt ``how.texts`` times with different random numbers.

    End tokens are disabled: texts do not contain their end token, so a test of the other tokens
    would be biased.
    """
    requests = [Request(context.prompt, f"check/{context.name}/{i}") for i in range(how.texts)]
    options = DecodeOptions(
        method.sampling(sampling),
        how.draft_length,
        ROUNDS * (how.draft_length + 1) + 1,
        seed=how.seed,
        batch_size=min(how.batch_size, how.texts),
        control=method.control,
    )
    decoded = decode_all(replace(pair, eos_ids=frozenset()), method.rule, requests, options)
    return [generation for _, generation in sorted(decoded, key=lambda found: found[0])]


ACCEPTED, CORRECTED, OWN = range(3)
"""A token is an accepted draft, the correction of a rejected one, or the target's own: a bonus
token, or any token without drafting."""


class Tokens(NamedTuple):
    """The tokens of K texts of T tokens each; every field is ``[K, T]``."""

    tokens: Tensor
    kind: Tensor
    drafted: Tensor  # the drafted token at this position; 0 if there was none
    place: Tensor  # position within the round, from 0
    expected: Tensor  # reported acceptance probability; NaN without a drafted token
    weight: Tensor  # reported weight on the target; NaN without a drafted token


def tokens_of(generations: Sequence[Generation]) -> Tokens:
    """Return the tokens of texts of equal length."""
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
