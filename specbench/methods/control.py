"""When to stop drafting: where another draft would cost more than it is likely to bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class DraftState(NamedTuple):
    """What the drafts of B texts so far promise."""

    proposed: Tensor  # [B] drafts that are to be judged
    active: Tensor  # [B] whether another one is worth its cost
    kept: Tensor  # [B] probability that all drafts so far are accepted
    tokens: Tensor  # [B] expected tokens of the round, its own last one included


@dataclass(frozen=True)
class DraftControl:
    """Stop a text's drafting where its next draft lowers the expected tokens per time.

    The draft model's confidence, its largest probability, stands for the probability that a draft
    is accepted. After i drafts a round is expected to bring E tokens in the time 1 + i c, in units
    of a target pass; one more draft adds c to the time, and to the tokens the probability that all
    of them are kept, its confidence taken to be the last one's. Drafting continues while

        kept * confidence / c > E / (1 + i c),

    so while the rate still rises. Whether a draft is made depends on what was drawn before it and
    never on its own draw, so the emitted law stays the rule's own: a round may be of any length
    (Leviathan et al. 2023, arXiv:2211.17192).
    """

    cost: float  # c, the time of one draft step over that of the target's pass; above 0

    def begin(self, active: Tensor) -> DraftState:
        """Return the state before the first draft, which every row ``[B]`` with a text gets."""
        one = torch.ones(len(active), device=active.device)
        return DraftState(torch.zeros_like(active, dtype=torch.long), active, one, one)

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
    """Draft as many tokens in every round, so that an engine is ready for that number."""

    drafts: int = 1

    def after(self, state: DraftState, q: Tensor, drafted: int) -> DraftState:
        """Return the state after one more draft, see ``DraftControl``."""
        found = super().after(state, q, drafted)
        return found._replace(active=state.active & (drafted < self.drafts))


def warmup_lengths(
    control: DraftControl | None, draft_length: int, static: bool
) -> list[FixedLength]:
    """Return a control for each number of drafts, up to N, that a warm-up must meet.

    There are some only for an engine with ``static`` shapes, which prepares each length when it
    first meets it.
    """
    if control is None or not static:
        return []
    return [FixedLength(control.cost, drafts) for drafts in range(1, draft_length + 1)]
