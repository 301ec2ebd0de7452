"""Drafting: what proposes the tokens of a round, for a batch of texts.

A drafter is a function of the texts' state. Its parts never wait for the device, so an engine can
compile or capture them; only a control waits, after each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampling, draw
from specbench.engine.engines import Engine
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Model
from specbench.methods.control import DraftControl
from specbench.methods.drafters import GREEDY, MODEL, ngram_lengths


class State(NamedTuple):
    """State of B texts: the target has read all tokens but the last, the draft all but two."""

    last: Tensor  # [B, 2] the two newest tokens; the same token twice in a text of one token
    length: Tensor  # [B] tokens so far
    uniforms: Tensor  # [B, 2 N + 1] for this round: N drafts, N acceptances, the last token
    active: Tensor  # [B] whether the row has a text
    kv_length: int | None  # tokens of the longest text; None attends to the whole cache
    # [B, capacity] all tokens, followed by anything; None if the drafter does not read them
    tokens: Tensor | None = None
    inside: Tensor | None = None  # [B] whether the text is between its marks; None without marks


class Drafts(NamedTuple):
    """Up to N drafted tokens of B texts."""

    x: Tensor  # [B, n]
    q: Tensor  # [B, n, V] processed; `x` is drawn from it; zeros where nothing is proposed
    q1: Tensor  # [B, n, V] softmax at temperature 1
    hidden: Tensor  # [B, n, hidden]
    proposed: Tensor | None = None  # [B] how many of them count, the first ones; None for all


class Drafter(Protocol):
    """Proposes drafts."""

    @property
    def reads_text(self) -> bool:
        """Whether it needs ``State.tokens``."""

    def runners(self, pair: LoadedPair) -> Sequence[Model]:
        """Return the models that it runs, which must have read the prompts."""

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Draft up to N tokens of every text; without a control, N."""


@dataclass(frozen=True)
class ModelDrafter:
    """Draws tokens from the draft model's q, or takes its likeliest: then q is one-hot."""

    greedy: bool = False
    reads_text = False

    def runners(self, pair: LoadedPair) -> Sequence[Model]:
        """Return the draft model."""
        return [pair.draft]

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Draft N tokens, or as many as the control wants."""
        sampling = _greedily(sampling) if self.greedy else sampling
        if control is None:
            return pair.engine(draft)(pair.draft, state, sampling)
        return draft_adaptively(pair.engine, pair.draft, state, sampling, control)


@dataclass(frozen=True)
class LookupDrafter:
    """Copies what followed an earlier occurrence of the text's last n-gram; runs no model."""

    shortest: int
    longest: int
    reads_text = True

    def runners(self, pair: LoadedPair) -> Sequence[Model]:
        """Return no model."""
        return []

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Copy up to N tokens; a control has nothing to decide, since copies cost nothing."""
        vocabulary = pair.target.vocabulary
        return pair.engine(draft_from_text)(state, self.shortest, self.longest, vocabulary)


def load_drafter(name: str) -> Drafter:
    """Return the drafter of a name that ``methods.drafters.checked`` accepts."""
    if lengths := ngram_lengths(name):
        return LookupDrafter(*lengths)
    return {MODEL: ModelDrafter(), GREEDY: ModelDrafter(greedy=True)}[name.partition("+")[0]]


@cache
def _greedily(sampling: Sampling) -> Sampling:
    return sampling.updated(temperature=0.0)


def draft_from_text(state: State, shortest: int, longest: int, vocabulary: int) -> Drafts:
    """Copy up to N tokens of every text from the text itself; q and q1 are one-hot."""
    assert state.tokens is not None
    n = state.uniforms.shape[1] // 2
    x, proposed = lookup(state.tokens, state.length, n, shortest, longest)
    # A prompt may hold special tokens that the models do not share.
    proposed = torch.minimum(proposed, (x < vocabulary).cumprod(1).sum(1))
    x = torch.where(x < vocabulary, x, 0)
    is_proposed = torch.arange(n, device=x.device) < proposed[:, None]
    q = torch.zeros(*x.shape, vocabulary, device=x.device)
    q = q.scatter(2, x[..., None], is_proposed[..., None].to(q))
    return Drafts(x, q, q, q[..., :0], proposed)


def draft(model: Model, state: State, sampling: Sampling) -> Drafts:
    """Draft N tokens of every text."""
    drafts: list[Drafts] = []
    for i in range(state.uniforms.shape[1] // 2):
        tokens = drafts[-1].x if drafts else state.last
        drafts.append(draft_token(model, state, tokens, i, sampling))
    return joined(drafts)


def draft_adaptively(
    engine: Engine, model: Model, state: State, sampling: Sampling, control: DraftControl
) -> Drafts:
    """Draft until the control stops all texts, or up to N tokens.

    The host waits for a GPU after each token.
    """
    drafts: list[Drafts] = []
    drafting = control.begin(state.active)
    for i in range(state.uniforms.shape[1] // 2):
        tokens = drafts[-1].x if drafts else state.last
        drafted = engine(draft_token)(model, state, tokens, i, sampling)
        # The engine reuses its memory.
        drafts.append(Drafts(*(part.clone() for part in drafted[:4])))
        columns = (drafts[-1].x[:, 0], drafts[-1].q[:, 0], drafts[-1].q1[:, 0])
        drafting = control.after(drafting, *columns, i + 1)
        if not drafting.active.any():
            break
    whole = joined(drafts)
    counts = torch.arange(len(drafts), device=whole.x.device) < drafting.proposed[:, None]
    return whole._replace(q=whole.q * counts[..., None], proposed=drafting.proposed)


def draft_token(model: Model, state: State, tokens: Tensor, i: int, sampling: Sampling) -> Drafts:
    """Read ``tokens`` ``[B, k]`` and draft the i-th token of the round, from 0."""
    # The draft has not read the last draft of a round that accepted all of them. Reading the last
    # two tokens is correct after every round and keeps the shape fixed.
    positions = state.length[:, None] + torch.arange(i - tokens.shape[1], i, device=tokens.device)
    hidden, logits = model.read(tokens, positions.clamp_min(0), kv_length(state, i), last=True)
    q, q1 = sampling.distributions(logits[:, 0])
    x = draw(q, state.uniforms[:, i])
    return Drafts(x[:, None], q[:, None], q1[:, None], hidden)


def joined(drafts: list[Drafts]) -> Drafts:
    """Concatenate drafts of the same texts along the token dimension."""
    return Drafts(*(torch.cat(parts, 1) for parts in zip(*(d[:4] for d in drafts), strict=True)))


def kv_length(state: State, drafted: int) -> int | None:
    """Return how many tokens to attend to after so many drafts; None for the whole cache."""
    return None if state.kv_length is None else state.kv_length + drafted


def lookup(
    tokens: Tensor, length: Tensor, drafts: int, shortest: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Copy up to N tokens from where each text's last n-gram occurred before.

    Among equally long n-grams the last occurrence wins, although an earlier one may have more
    tokens after it; engines differ in this choice.

    Args:
        tokens: ``[B, L]`` prompt and output of each text; what follows ``length`` is ignored.
        length: ``[B]`` tokens of each text.
        drafts: N, the most tokens copied.
        shortest: Tokens of the shortest n-gram, at least 1.
        longest: Tokens of the longest n-gram.

    Returns:
        The drafts ``[B, N]``, and how many of them are proposed ``[B]``: 0 where nothing matches.

    Source: Saxena 2023, prompt lookup decoding; n-gram speculation of serving engines.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    last = length[:, None] - 1
    # matched[b, i]: how many tokens up to i equal as many at the end of the text.
    matched = torch.zeros_like(tokens)
    running = positions < last  # an occurrence ends before the text does
    for back in range(longest):
        end = tokens.gather(1, (last - back).clamp_min(0))
        earlier = tokens.gather(1, (positions - back).clamp_min(0).expand_as(tokens))
        running = running & (earlier == end) & (positions >= back) & (last >= back)
        matched += running
    matched = torch.where(matched >= shortest, matched, 0)
    # The longest n-gram first, then the last occurrence.
    best, match_end = (matched * tokens.shape[1] + positions).max(1)
    has_match = best >= tokens.shape[1]
    after = match_end[:, None] + 1 + torch.arange(drafts, device=tokens.device)
    proposed = torch.where(has_match, (length - 1 - match_end).clamp_max(drafts), 0)
    return tokens.gather(1, after.clamp_max(tokens.shape[1] - 1)), proposed
