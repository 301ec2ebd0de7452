"""Texts that a check samples with the real loop, and the origin of each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.check.passes import plain_pass
from specbench.decoding.drafting import Drafter, LookupDrafter, ModelDrafter
from specbench.decoding.loop import DecodeOptions, Request, decode, decode_all
from specbench.decoding.records import Generation, RoundRecord
from specbench.decoding.sampling import Sampling, uniforms
from specbench.engine.loading import LoadedPair
from specbench.heads.bind import BoundMethod
from specbench.methods import Rule

ROUNDS = 2  # minimum number of complete rounds per text, so that caches are overwritten
LEAD = 24  # maximum number of tokens between a prompt and the sampled rounds


class Context(NamedTuple):
    """The tokens of a prompt, and the name of its task and example."""

    name: str
    prompt: Sequence[int]


class Ends(NamedTuple):
    """What ends a sampled text, in place of the pair's own end tokens."""

    limit: int  # tokens, with the end token
    token: int | None = None  # end token
    stop: str = ""  # stop string; none if empty

    def output(self, generation: Generation) -> list[int]:
        """Return the tokens of an output, with its end token."""
        if self.token is None or generation.stopped_by != "eos":
            return generation.token_ids
        return [*generation.token_ids, self.token]


class SampleOptions(NamedTuple):
    """How to sample and compare rounds."""

    texts: int  # per prompt
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
    pair: LoadedPair,
    method: BoundMethod,
    contexts: Sequence[Context],
    sampling: Sampling,
    how: SampleOptions,
    ends: Ends | None = None,
    drafter: Drafter = ModelDrafter(),  # noqa: B008 (frozen)
) -> list[list[Generation]]:
    """Decode each prompt ``how.texts`` times with different random numbers.

    The prompts take turns in one batch, so its rows have different lengths. By default a text ends
    after ``ROUNDS`` complete rounds only.
    """
    requests = [
        Request(context.prompt, _key(context, number))
        for number in range(how.texts)
        for context in contexts
    ]
    ends = ends or Ends(ROUNDS * (how.draft_length + 1) + 1)
    options = DecodeOptions(
        method.sampling(sampling),
        how.draft_length,
        ends.limit,
        seed=how.seed,
        stop=(ends.stop,) if ends.stop else (),
        batch_size=min(how.batch_size, len(requests)),
        drafter=drafter,
        control=method.control,
    )
    end_tokens = frozenset() if ends.token is None else frozenset({ends.token})
    decoded = decode_all(replace(pair, eos_ids=end_tokens), method.rule, requests, options)
    texts = [generation for _, generation in sorted(decoded, key=lambda numbered: numbered[0])]
    return [texts[number :: len(contexts)] for number in range(len(contexts))]


def random_numbers(context: Context, how: SampleOptions, rounds: int, drafts: int) -> Tensor:
    """Return the random numbers of a prompt's texts, ``[texts, rounds, 2 drafts + 1]``."""
    keys = (_key(context, number) for number in range(how.texts))
    return torch.stack([uniforms(how.seed, key, rounds, drafts) for key in keys])


def _key(context: Context, number: int) -> str:
    return f"check/{context.name}/{number}"


VOID, ACCEPTED, CORRECTED, OWN = range(4)
"""A token is an accepted draft, the correction of a rejected one, or the target's own: a bonus
token, or any token without drafting. What follows the end of a text is void."""

DRAWN, NOTHING = -2, -1
"""In place of a token that is proposed for certain: one that is drawn, or none."""


class Tokens(NamedTuple):
    """The tokens of K texts of up to T tokens each; every field is ``[K, T]``."""

    tokens: Tensor
    kind: Tensor
    drafted: Tensor  # the drafted token at this position; 0 if there was none
    place: Tensor  # position within the round, from 0
    expected: Tensor  # reported acceptance probability; NaN without a drafted token
    weight: Tensor  # reported weight on the target; NaN without a drafted token
    round: Tensor  # number of the round, from 0
    proposed: Tensor  # the token that the drafter must propose; DRAWN or NOTHING

    def flatten(self) -> Tokens:
        """Return all tokens as texts of one token, without the dimension T."""
        return Tokens(*(column.flatten() for column in self))


_VOID = (0, VOID, 0, 0, nan, nan, 0, NOTHING)


def tokens_of(
    generations: Sequence[Generation],
    prompt: Sequence[int],
    ends: Ends,
    drafter: Drafter,
    draft_length: int,
    vocabulary: int,
) -> Tokens:
    """Return the tokens of a prompt's texts."""
    rows: list[list[tuple[float, ...]]] = []
    for generation in generations:
        output = ends.output(generation)
        rows.append([])
        for number, record in enumerate(generation.rounds):
            start = len(rows[-1])
            text = [*prompt, *output[:start]]
            proposed = proposals(drafter, text, draft_length, vocabulary)
            origins = _origins(record, output[start : start + record.emitted])
            for place, origin in enumerate(origins):
                draft = proposed[place] if place < len(proposed) else NOTHING
                rows[-1].append((*origin, number, draft))
    longest = max(map(len, rows))
    padded = [row + [_VOID] * (longest - len(row)) for row in rows]
    return Tokens(
        *(torch.tensor([[token[i] for token in row] for row in padded]) for i in range(8))
    )


def proposals(
    drafter: Drafter, text: Sequence[int], draft_length: int, vocabulary: int
) -> list[int]:
    """Return what a drafter must propose after a text, DRAWN if it draws.

    The search for an n-gram is independent of ``decoding.lookup``: the longest that ends the text
    and occurs before, at its last occurrence.
    """
    if not isinstance(drafter, LookupDrafter):
        return [DRAWN] * draft_length
    for length in range(min(drafter.longest, len(text) - 1), drafter.shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            end = start + length
            if text[start:end] == text[-length:]:
                copied = text[end : end + draft_length]
                return list(takewhile(lambda token: token < vocabulary, copied))
    return []


def _origins(
    record: RoundRecord, emitted: Sequence[int]
) -> Iterator[tuple[int, int, int, int, float, float]]:
    """Yield the first six fields of ``Tokens`` of a round's tokens."""
    for place, token in enumerate(emitted):
        accepted = place < record.accepted
        drafted = token if accepted else record.rejected
        if drafted is None:
            yield token, OWN, 0, place, nan, nan
            continue
        kind = ACCEPTED if accepted else CORRECTED
        weight = record.weights[place] if record.weights else nan
        yield token, kind, drafted, place, record.expected[place], weight
