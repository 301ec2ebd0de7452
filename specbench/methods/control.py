"""Draft controls: stop drafting where the expected gain of another draft is below its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from specbench.methods.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


class DraftState(NamedTuple):
    """The state of drafting for B texts."""

    proposed: Tensor  # [B] drafts that count, the first ones
    active: Tensor  # [B] whether another draft is worth its cost
    kept: Tensor  # [B] probability that all drafts so far are accepted
    tokens: Tensor  # [B] expected tokens of the round, including the target's own


@dataclass(frozen=True)
class DraftControl:
    """Stop drafting a text where the next draft would lower the expected tokens per time.

    The draft model's confidence (its largest probability) estimates the acceptance probability of a
    draft. After i drafts, a round is expected to emit E tokens in time 1 + i c, in units of a
    target pass. One more draft adds c to the time. It adds to E the probability that all drafts are
    accepted, with the last draft's confidence as the estimate for the next one. Drafting continues
    while this increases the rate:

        kept * confidence / c > E / (1 + i c).

    Whether a token is drafted depends only on earlier draws, never on its own, so the emitted
    distribution is that of the rule: rounds may have any length (Leviathan et al. 2023,
    arXiv:2211.17192).
    """

    cost: float  # c, time of a draft step / time of a target pass; above 0

    def begin(self, active: Tensor) -> DraftState:
        """Return the state before the first draft; every ``active`` row ``[B]`` gets one."""
        ones = torch.ones(len(active), device=active.device)
        return DraftState(torch.zeros_like(active, dtype=torch.long), active, ones, ones)

    def after(self, state: DraftState, q: Tensor, drafted: int) -> DraftState:
        """Return the state after one more draft from ``q`` ``[B, V]``, the ``drafted``-th."""
        confidence = q.amax(-1)
        kept = torch.where(state.active, state.kept * confidence, state.kept)
        tokens = torch.where(state.active, state.tokens + kept, state.tokens)
        rate = tokens / (1 + drafted * self.cost)
        return DraftState(
            proposed=state.proposed + state.active,
            active=state.active & (kept * confidence > self.cost * rate),
            kept=kept,
            tokens=tokens,
        )


@dataclass(frozen=True)
class FixedLength(DraftControl):
    """Draft a fixed number of tokens per round, to warm up an engine for that number."""

    drafts: int = 1

    def after(self, state: DraftState, q: Tensor, drafted: int) -> DraftState:
        """Return the state after one more draft; see ``DraftControl``."""
        following = super().after(state, q, drafted)
        return following._replace(active=state.active & (drafted < self.drafts))


def warmup_lengths(
    control: DraftControl | None, draft_length: int, static: bool
) -> list[FixedLength]:
    """Return a control for each number of drafts, up to N, that needs a warm-up.

    Only an engine with ``static`` shapes needs them: it compiles or captures each length on its
    first use.
    """
    if control is None or not static:
        return []
    return [FixedLength(control.cost, drafts) for drafts in range(1, draft_length + 1)]
