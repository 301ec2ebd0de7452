"""Drafting with an EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.drafting import (
    Drafts,
    State,
    draft,
    draft_adaptively,
    drawn,
    kv_length,
)
from specbench.decoding.sampling import Sampling
from specbench.drafters.head import EagleRunner
from specbench.engine.pair import LoadedPair
from specbench.methods.control import DraftControl


@dataclass(frozen=True)
class EagleDrafter:
    """Draws tokens from the q of a head on the target's states."""

    head: EagleRunner
    reads_text = True

    @property
    def layers(self) -> Sequence[int]:
        """The layers whose states the head reads."""
        return self.head.head.config.layers

    def runners(self, pair: LoadedPair) -> Sequence[EagleRunner]:
        """Return the head."""
        return [self.head]

    def prefill(self, pair: LoadedPair, prompt: Tensor, row: int, states: Tensor | None) -> None:
        """Read a prompt with the head."""
        assert states is not None
        self.head.prefill(prompt, row, states)

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Draft N tokens, or as many as the control wants."""
        step = draft_from_states
        if control is None:
            return pair.engine(draft)(step, self.head, state, sampling)
        return draft_adaptively(pair.engine, step, self.head, state, sampling, control)


def draft_from_states(
    head: EagleRunner, state: State, previous: Drafts | None, i: int, sampling: Sampling
) -> Drafts:
    """Draft the i-th token of the round, from 0, with a head on the target's states."""
    assert state.tokens is not None and state.states is not None
    count = state.states.shape[1] if previous is None else 1
    # A position holds the target's state there and the token after it.
    end = state.length[:, None] - 1 + i
    positions = (end + torch.arange(-count, 0, device=end.device)).clamp_min(0)
    if previous is None:  # the target's states replace the head's own of the last round
        tokens = state.tokens.gather(1, (positions + 1).minimum(end))
        hidden = head.head.fuse(state.states)
    else:
        tokens, hidden = previous.x, previous.hidden
    read = kv_length(state, i - 1)
    hidden, logits = head.read(tokens, hidden, positions, None if read is None else max(1, read))
    return drawn(logits, hidden, state.uniforms[:, i], sampling)
