"""Draft controls: what decides after each draft whether its text gets another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from specbench.methods.lazy import Tensor, torch


class DraftState(NamedTuple):
    """The state of drafting for B texts."""

    proposed: Tensor  # [B] drafts that count, the first ones
    active: Tensor  # [B] whether another draft is wanted
    history: tuple[Any, ...] = ()  # what the control remembers of the round


class DraftControl:
    """Draft N tokens; other controls stop earlier.

    Whether a token counts may depend only on earlier draws, never on its own: then the emitted
    distribution is that of the rule, since rounds may have any length (Leviathan et al. 2023,
    arXiv:2211.17192).
    """

    def begin(self, active: Tensor) -> DraftState:
        """Return the state before the first draft, which every ``active`` row ``[B]`` gets."""
        return DraftState(torch.zeros_like(active, dtype=torch.long), active)

    def after(
        self, state: DraftState, x: Tensor, q: Tensor, q1: Tensor, drafted: int
    ) -> DraftState:
        """Return the state after one more draft ``x`` ``[B]`` from ``q`` ``[B, V]``.

        ``q1`` is the softmax at temperature 1; it is the ``drafted``-th draft of the round.
        """
        return state._replace(proposed=state.proposed + state.active)


@dataclass(frozen=True)
class FixedLength(DraftControl):
    """Draft a fixed number of tokens per round, to warm up an engine for that number."""

    drafts: int

    def after(
        self, state: DraftState, x: Tensor, q: Tensor, q1: Tensor, drafted: int
    ) -> DraftState:
        """Return the state after one more draft; see ``DraftControl``."""
        following = super().after(state, x, q, q1, drafted)
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
    return [FixedLength(drafts) for drafts in range(1, draft_length + 1)]
