"""How texts are sampled with the real loop, and the origin of each of their tokens.

Their laws come from plain passes, which are processed without the decoding loop's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafters.kind import DrafterKind
from specbench.decoding.drafters.model import ModelDrafter
from specbench.decoding.drafting import context_of
from specbench.decoding.heads.bind import BoundMethod
from specbench.decoding.loop import DecodeOptions, Request, decode, decode_all
from specbench.decoding.records import Generation, RoundRecord
from specbench.decoding.sampling import Sampling, uniforms
from specbench.engine.pair import LoadedPair, Model
from specbench.engine.passes import plain_pass
from specbench.methods import Rule

LEAD = 24  # maximum number of tokens between a prompt and the sampled rounds
ROUNDS = 2  # minimum number of complete rounds per text, so that caches are overwritten
DRAWN, NOTHING = -2, -1
"""Stand for a draft that is drawn, so not known beforehand, and for no draft."""


class Context(NamedTuple):
    """The tokens of a prompt, and the name of its task and example."""

    name: str
    prompt: Sequence[int]


class Ends(NamedTuple):
    """What ends a sampled text, instead of the pair's end tokens."""

    limit: int  # tokens, with the end token
    token: int | None = None  # end token
    stop: str = ""  # stop string; none if empty

    def output(self, generation: Generation) -> list[int]:
        """Return the tokens of an output, with its end token."""
        if self.token is None or generation.stopped_by != "eos":
            return generation.token_ids
        return [*generation.token_ids, self.token]

    @property
    def whole(self) -> bool:
        """Whether a text is a whole output, not so many rounds."""
        return self.token is not None


def after_rounds(draft_length: int) -> Ends:
    """Return ends that let ``ROUNDS`` rounds be complete."""
    return Ends(ROUNDS * (draft_length + 1) + 1)


class Setup(NamedTuple):
    """How the texts of prompts are sampled, which decides their laws."""

    pair: LoadedPair
    method: BoundMethod
    sampling: Sampling = Sampling()
    drafter: DrafterKind = ModelDrafter()
    draft_length: int = 0  # N
    ends: Ends = Ends(limit=1)
    texts: int = 1  # per prompt
    batch_size: int = 1
    seed: int = 0

    @property
    def drafts(self) -> int:
        """The number of drafts that a round may have."""
        return self.draft_length if self.method.rule else 0

    def propose(self, text: Sequence[int]) -> list[int]:
        """Return what must be proposed after a text, ``DRAWN`` if it is drawn."""
        context = context_of(self.drafter, self.pair)
        room = self.drafts if context is None else max(0, context + 1 - len(text))
        drafts = min(self.drafts, room)
        return proposals(self.drafter, text, drafts, self.pair.target.vocabulary)


def proposals(
    drafter: DrafterKind, text: Sequence[int], draft_length: int, vocabulary: int
) -> list[int]:
    """Return what a drafter must propose after a text, DRAWN if it draws."""
    copied = drafter.propose(text, draft_length)
    if copied is None:
        return [DRAWN] * draft_length
    return list(takewhile(lambda token: token < vocabulary, copied))


def decode_one(
    pair: LoadedPair,
    context: Context,
    tokens: int,
    *,
    rule: Rule | None = None,
    draft_length: int = 0,
    temperature: float = 0.0,
    drafter: DrafterKind = ModelDrafter(),  # noqa: B008 (frozen)
) -> Generation:
    """Decode a prompt once, by default greedily with the target alone."""
    sampling = Sampling(temperature=temperature)
    options = DecodeOptions(sampling, draft_length, tokens, drafter=drafter)
    return decode(pair, rule, Request(context.prompt, f"check/{context.name}"), options)


def informative(pair: LoadedPair, context: Context) -> Context:
    """Extend a prompt greedily to a position where the target is unsure and the draft differs.

    Directly after a prompt, the next token is often certain and would reveal no fault.
    """
    return extended(pair, context, decode_one(pair, context, LEAD).token_ids)


def extended(
    pair: LoadedPair, context: Context, answer: Sequence[int], earlier: int = 0
) -> Context:
    """Extend a prompt by those tokens of its answer that lead to such a position.

    The result ends so many tokens ``earlier``; those left out should be accepted if drafted.
    """
    text, last = [*context.prompt, *answer, 0], len(answer) + 1
    p = laws_along(pair.target, text, last, Sampling())
    q = laws_along(pair.draft, text, last, Sampling())
    entropy = torch.special.entr(p).sum(-1)
    tokens = torch.tensor([*answer], dtype=torch.long, device=p.device)[:, None]
    accept = (q[:-1].gather(1, tokens) / p[:-1].gather(1, tokens))[:, 0].clamp_max(1)
    earlier = min(earlier, len(answer))
    ends = range(len(answer) + 1 - earlier)
    accepted = torch.stack([accept[i : i + earlier].prod() for i in ends])
    score = ((p - q).abs().sum(-1) * entropy)[earlier:] * accepted
    return Context(context.name, [*context.prompt, *answer[: int(score.argmax())]])


def sample(setup: Setup, contexts: Sequence[Context]) -> list[list[Generation]]:
    """Decode each prompt ``setup.texts`` times with different random numbers.

    The prompts take turns in one batch, so its rows have different lengths.
    """
    requests = [
        Request(context.prompt, f"check/{context.name}/{number}")  # as ``random_numbers`` has it
        for number in range(setup.texts)
        for context in contexts
    ]
    method, ends = setup.method, setup.ends
    options = DecodeOptions(
        method.sampling(setup.sampling),
        setup.draft_length,
        ends.limit,
        seed=setup.seed,
        stop=(ends.stop,) if ends.stop else (),
        batch_size=min(setup.batch_size, len(requests)),
        drafter=setup.drafter,
        control=method.control,
    )
    end_tokens = frozenset() if ends.token is None else frozenset({ends.token})
    decoded = decode_all(replace(setup.pair, eos_ids=end_tokens), method.rule, requests, options)
    texts = [generation for _, generation in sorted(decoded, key=lambda numbered: numbered[0])]
    return [texts[number :: len(contexts)] for number in range(len(contexts))]


def random_numbers(setup: Setup, context: Context, rounds: int) -> Tensor:
    """Return the random numbers of a prompt's texts, ``[texts, rounds, 2 N + 1]``."""
    keys = (f"check/{context.name}/{number}" for number in range(setup.texts))
    return torch.stack([uniforms(setup.seed, key, rounds, setup.drafts) for key in keys])


VOID, ACCEPTED, CORRECTED, TARGET = range(4)
"""A token is an accepted draft, the correction of a rejected one, or the target's: a bonus token,
or any token without drafting. What follows the end of a text is void."""


class Tokens(NamedTuple):
    """The tokens of K texts of up to T tokens each; every field is ``[K, T]``."""

    tokens: Tensor
    kind: Tensor
    drafted: Tensor  # the drafted token at this position; 0 if there was none
    position: Tensor  # position within the round, from 0
    expected: Tensor  # reported acceptance probability; NaN without a drafted token
    weight: Tensor  # reported weight on the target; NaN without a drafted token
    round: Tensor  # number of the round, from 0
    proposed: Tensor  # the token that the drafter must propose; DRAWN or NOTHING

    @property
    def judged(self) -> Tensor:
        """Whether a draft was accepted or rejected here."""
        return (self.kind == ACCEPTED) | (self.kind == CORRECTED)

    def flatten(self) -> Tokens:
        """Return all tokens as texts of one token, without the dimension T."""
        return Tokens(*(column.flatten() for column in self))

    def part(self, rows: Tensor, device: torch.device) -> Tokens:
        """Return some of the texts on a device."""
        return Tokens(*(column[rows].to(device) for column in self))


_VOID = (0, VOID, 0, 0, nan, nan, 0, NOTHING)


def tokens_of(
    generations: Sequence[Generation],
    prompt: Sequence[int],
    ends: Ends,
    propose: Callable[[Sequence[int]], Sequence[int]],
) -> Tokens:
    """Return the tokens of a prompt's texts; ``propose`` is the setup's."""
    rows: list[list[tuple[float, ...]]] = []
    for generation in generations:
        output = ends.output(generation)
        rows.append([])
        for number, record in enumerate(generation.rounds):
            start = len(rows[-1])
            proposed = propose([*prompt, *output[:start]])
            origins = _origins(record, output[start : start + record.emitted])
            for position, origin in enumerate(origins):
                draft = proposed[position] if position < len(proposed) else NOTHING
                rows[-1].append((*origin, number, draft))
    longest = max(map(len, rows))
    padded = [row + [_VOID] * (longest - len(row)) for row in rows]
    columns = ([[token[i] for token in row] for row in padded] for i in range(len(_VOID)))
    return Tokens(*map(torch.tensor, columns))


def _origins(
    record: RoundRecord, emitted: Sequence[int]
) -> Iterator[tuple[int, int, int, int, float, float]]:
    """Yield the first six fields of ``Tokens`` of a round's tokens."""
    for position, token in enumerate(emitted):
        accepted = position < record.accepted
        drafted = token if accepted else record.rejected
        if drafted is None:
            yield token, TARGET, 0, position, nan, nan
            continue
        kind = ACCEPTED if accepted else CORRECTED
        weight = record.weights[position] if record.weights else nan
        yield token, kind, drafted, position, record.expected[position], weight


def laws_along(model: Model, text: Sequence[int], last: int, sampling: Sampling) -> Tensor:
    """Return a model's laws ``[last, V]`` of the last tokens of a text."""
    return processed(plain_pass(model, [text], last).logits[0], sampling)


def processed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return probabilities ``[K, V]`` in float64 after temperature, top-k, top-p and min-p."""
    p = (logits.double() / sampling.temperature).softmax(-1)
    if sampling.top_k is sampling.top_p is sampling.min_p is None:
        return p
    ordered, tokens = p.sort(-1, descending=True)
    if sampling.top_k is not None:
        ordered[:, sampling.top_k :] = 0
        ordered = ordered / ordered.sum(-1, keepdim=True)
    if sampling.top_p is not None:
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0)
    if sampling.min_p is not None:
        ordered = ordered.masked_fill(ordered < sampling.min_p * ordered[:, :1], 0)
    filtered = torch.zeros_like(p).scatter(-1, tokens, ordered)
    return filtered / filtered.sum(-1, keepdim=True)
