"""Drafting: what proposes the tokens of a round, for a batch of texts.

A drafter is a function of the texts' state. Its parts never wait for the device, so an engine can
compile or capture them; only a control waits, after each token.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.decoding.sampling import Sampling, draw
from specbench.methods.control import DraftControl
from specbench.methods.lazy import Tensor, torch

if TYPE_CHECKING:
    from specbench.engine.engines import Engine
    from specbench.engine.pair import LoadedPair, Model


class State(NamedTuple):
    """State of B texts: the target has read all tokens but the last, the draft all but two."""

    last: Tensor  # [B, 2] the two newest tokens; the same token twice in a text of one token
    length: Tensor  # [B] tokens so far
    uniforms: Tensor  # [B, 2 N + 1] for this round: N drafts, N acceptances, the last token
    active: Tensor  # [B] whether the row has a text
    kv_length: int | None  # tokens of the longest text; None attends to the whole cache
    # [B, capacity] all tokens, followed by anything; None if the drafter does not read them
    tokens: Tensor | None = None
    # [B, W, layers * hidden] the target's states at the last W tokens that it has read, after the
    # layers that the drafter reads; None if it reads none
    states: Tensor | None = None


class Drafts(NamedTuple):
    """Up to N drafted tokens of B texts."""

    x: Tensor  # [B, n]
    q: Tensor  # [B, n, V] processed; `x` is drawn from it; zeros where nothing is proposed
    q1: Tensor  # [B, n, V] softmax at temperature 1
    hidden: Tensor  # [B, n, hidden]
    proposed: Tensor | None = None  # [B] how many of them count, the first ones; None for all


# Drafts the next token of a round with a model, after the last one.
Step = Callable[[Any, State, Drafts | None, int, Sampling], Drafts]


class Drafter:
    """Proposes drafts. This one draws them from the draft model's q; others override its parts."""

    greedy: bool = False  # whether it takes the likeliest token instead: then q is one-hot
    reads_text: bool = False  # whether it needs ``State.tokens``
    layers: Sequence[int] = ()  # the target's layers that ``State.states`` must have

    def runners(self, pair: LoadedPair) -> Sequence[Any]:
        """Return the models that it runs, whose caches are reserved."""
        return [pair.draft]

    def prefill(self, pair: LoadedPair, prompt: Tensor, row: int, states: Tensor | None) -> None:
        """Read a prompt ``[T]``, after whose first T - 1 tokens the target had ``states``."""
        pair.draft.prefill(prompt, row)

    @property
    def step(self) -> Step:
        """The function that drafts a token with its model."""
        return draft_token

    def twin(self, pair: LoadedPair) -> Drafter:
        """Return the same drafter with caches of its own, for a pair that has its own."""
        return self

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Draft up to N tokens of every text; without a control, N."""
        (model,) = self.runners(pair)
        sampling = _greedily(sampling) if self.greedy else sampling
        if control is None:
            return pair.engine(draft)(self.step, model, state, sampling)
        return draft_adaptively(pair.engine, self.step, model, state, sampling, control)


@cache
def _greedily(sampling: Sampling) -> Sampling:
    return sampling.updated(temperature=0.0)


def draft_adaptively(
    engine: Engine, step: Step, model: Any, state: State, sampling: Sampling, control: DraftControl
) -> Drafts:
    """Draft until the control stops all texts, or up to N tokens.

    The host waits for a GPU after each token.
    """
    drafts: list[Drafts] = []
    drafting = control.begin(state.active)
    for i in range(state.uniforms.shape[1] // 2):
        drafted = engine(step)(model, state, drafts[-1] if drafts else None, i, sampling)
        # The engine reuses its memory.
        drafts.append(Drafts(*(part.clone() for part in drafted[:4])))
        columns = (drafts[-1].x[:, 0], drafts[-1].q[:, 0], drafts[-1].q1[:, 0])
        drafting = control.after(drafting, *columns, i + 1)
        if not drafting.active.any():
            break
    whole = joined(drafts)
    counts = torch.arange(len(drafts), device=whole.x.device) < drafting.proposed[:, None]
    return whole._replace(q=whole.q * counts[..., None], proposed=drafting.proposed)


def draft(step: Step, model: Any, state: State, sampling: Sampling) -> Drafts:
    """Draft N tokens of every text."""
    drafts: list[Drafts] = []
    for i in range(state.uniforms.shape[1] // 2):
        drafts.append(step(model, state, drafts[-1] if drafts else None, i, sampling))
    return joined(drafts)


def draft_token(
    model: Model, state: State, previous: Drafts | None, i: int, sampling: Sampling
) -> Drafts:
    """Draft the i-th token of the round, from 0, after the ``previous`` one."""
    # The draft has not read the last draft of a round that accepted all of them. Reading the last
    # two tokens is correct after every round and keeps the shape fixed.
    tokens = state.last if previous is None else previous.x
    positions = state.length[:, None] + torch.arange(i - tokens.shape[1], i, device=tokens.device)
    hidden, logits = model.read(tokens, positions.clamp_min(0), kv_length(state, i), last=True)
    return drawn(logits[:, 0], hidden, state.uniforms[:, i], sampling)


def drawn(logits: Tensor, hidden: Tensor, uniform: Tensor, sampling: Sampling) -> Drafts:
    """Draw one token per text from logits ``[B, V]`` after ``hidden`` ``[B, 1, hidden]``."""
    q, q1 = sampling.distributions(logits)
    x, rows = q.argmax(-1) if sampling.greedy else draw(q, uniform), q[:, None]
    return Drafts(x[:, None], rows, rows if q1 is q else q1[:, None], hidden)


def context_of(drafter: Drafter, pair: LoadedPair) -> int | None:
    """Return the tokens that a drafter can read, if a text may be longer."""
    contexts = [runner.context for runner in drafter.runners(pair)]
    context = min(filter(None, contexts), default=None)
    longest = pair.target.context
    return None if longest is not None and longest <= (context or longest) else context


def within(drafts: Drafts, length: Tensor, context: int) -> Drafts:
    """Propose nothing that is drafted after more tokens than a drafter can read."""
    count = torch.arange(drafts.x.shape[1], device=length.device)
    proposed = (context + 1 - length).clamp(0, len(count))
    if drafts.proposed is not None:
        proposed = torch.minimum(proposed, drafts.proposed)
    is_proposed = count < proposed[:, None]
    return drafts._replace(q=drafts.q * is_proposed[..., None], proposed=proposed)


def joined(drafts: list[Drafts]) -> Drafts:
    """Concatenate drafts of the same texts along the token dimension.

    Without processing q and q1 are the same tensors, which are not copied twice.
    """
    x, q, q1, hidden = zip(*(d[:4] for d in drafts), strict=True)
    rows = torch.cat(q, 1)
    same = all(map(operator.is_, q, q1))
    return Drafts(torch.cat(x, 1), rows, rows if same else torch.cat(q1, 1), torch.cat(hidden, 1))


def kv_length(state: State, drafted: int) -> int | None:
    """Return how many tokens to attend to after so many drafts; None for the whole cache."""
    return None if state.kv_length is None else state.kv_length + drafted
