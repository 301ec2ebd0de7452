"""Drafting with a head on the target's states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbench.decoding.drafters.heads import DraftHead, rotary_tables
from specbench.decoding.drafting import (
    Drafts,
    State,
    draft,
    draft_adaptively,
    drawn,
    kv_length,
)
from specbench.decoding.sampling import Sampling
from specbench.engine.cache import SlotCache
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner, angles_at, capacity_for, context_length, visible
from specbench.methods.control import DraftControl


class HeadDrafter:
    """Draws tokens from the q of a head, which runs beside the target with a cache of its own.

    A position t of the cache has the target's states at t and the token t + 1.
    """

    reads_text = True
    saved_seconds = 0.0  # it reads every prompt

    def __init__(self, head: DraftHead, target: Runner) -> None:
        """Prepare a head for decoding; it takes the target's dtype, device and vocabulary."""
        self.head = head.to(target.device, target.dtype).requires_grad_(False)
        head.share(target.base.embed_tokens, target.output)
        self.device, self.dtype, self.vocabulary = target.device, target.dtype, target.vocabulary
        self.context = context_length(head.config.layer)
        self.cache: SlotCache | None = None
        self.drafted: Tensor | None = None  # the tokens of a reduced vocabulary
        if isinstance(offsets := getattr(head, "d2t", None), Tensor):
            self.drafted = offsets + torch.arange(len(offsets), device=self.device)

    @property
    def layers(self) -> Sequence[int]:
        """The layers whose states the head reads."""
        return self.head.config.layers

    def fingerprint(self) -> str:
        """Return a hash of the configuration, the weights and the buffers."""
        shape = {**self.head.values(), "layer": self.head.config.layer.to_dict()}
        digest = hashlib.blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=8)
        for tensor in self.head.state_dict().values():
            digest.update(tensor.float().cpu().numpy().tobytes())
        return digest.hexdigest()

    def runners(self, pair: LoadedPair) -> Sequence[HeadDrafter]:
        """Return the drafter, which has the cache."""
        return [self]

    def __call__(
        self, pair: LoadedPair, state: State, sampling: Sampling, control: DraftControl | None
    ) -> Drafts:
        """Draft N tokens, or as many as the control wants."""
        step = draft_from_states
        if control is None:
            return pair.engine(draft)(step, self, state, sampling)
        return draft_adaptively(pair.engine, step, self, state, sampling, control)

    # A cache allocated in inference mode could not be written outside it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def reserve(self, rows: int, capacity: int) -> int:
        """Allocate at least ``rows`` x ``capacity`` tokens and return the capacity of a row."""
        if self.cache is None or self.cache.rows != rows or self.cache.capacity < capacity:
            capacity, layer = capacity_for(capacity), self.head.config.layer
            self.cache = None  # its memory may be needed for the next one
            self.cache = SlotCache(layer, capacity, [self.device], self.dtype, rows)
            tables = rotary_tables(layer, torch.arange(capacity, device=self.device))
            self.rotary = {"": (tables[0].to(self.dtype), tables[1].to(self.dtype))}
        return self.cache.capacity

    def drop_cache(self) -> None:
        """Free the cache."""
        self.cache = None

    @torch.no_grad()
    def prefill(self, pair: LoadedPair, prompt: Tensor, row: int, states: Tensor | None) -> None:
        """Read a prompt ``[T]`` with the target's states ``[T - 1, layers * hidden]``."""
        assert states is not None
        if read := len(states):
            at = torch.arange(read, device=self.device)[None]
            self._forward(prompt[None, 1:], self.head.fuse(states[None]), at, read, row)

    @torch.no_grad()
    def read(
        self, tokens: Tensor, hidden: Tensor, at: Tensor, kv_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read tokens ``[B, k]`` after states ``[B, k, H]`` at positions ``at`` ``[B, k]``.

        The head attends to the first ``kv_length`` slots of its cache, by default to all.

        Returns:
            The state of the last token ``[B, 1, H]`` and its next-token logits ``[B, V]``.
        """
        hidden = self._forward(tokens, hidden, at, kv_length)[:, -1:]
        return hidden, self.logits(hidden[:, 0])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits ``[B, V]`` of states ``[B, H]``; -inf where it never drafts."""
        logits = self.head.logits(hidden).float()
        if self.drafted is not None:
            spread = logits.new_full((len(logits), self.head.config.layer.vocab_size), -torch.inf)
            logits = spread.index_copy(1, self.drafted, logits)
        return logits[:, : self.vocabulary]

    def _forward(
        self,
        tokens: Tensor,
        hidden: Tensor,
        at: Tensor,
        kv_length: int | None,
        row: int | None = None,
    ) -> Tensor:
        cache = self.cache
        assert cache is not None
        slots, places = cache.place(at, kv_length, row)
        alone = tokens.numel() == 1 and kv_length is not None
        mask = None if alone else visible(at, slots, None)
        (angles,) = angles_at(self.rotary, places).values()

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            key, value = cache.update(key, value, 0)
            shared = key.shape[1] < query.shape[1]
            return scaled_dot_product_attention(query, key, value, mask, enable_gqa=shared)

        states: Tensor = self.head(tokens, hidden, angles, attend)
        return states


def draft_from_states(
    drafter: HeadDrafter, state: State, previous: Drafts | None, i: int, sampling: Sampling
) -> Drafts:
    """Draft the i-th token of the round, from 0, with a head on the target's states."""
    assert state.tokens is not None and state.states is not None
    count = state.states.shape[1] if previous is None else 1
    # A position holds the target's state there and the token after it.
    end = state.length[:, None] - 1 + i
    positions = (end + torch.arange(-count, 0, device=end.device)).clamp_min(0)
    if previous is None:  # the target's states replace the head's own of the last round
        tokens = state.tokens.gather(1, (positions + 1).minimum(end))
        hidden = drafter.head.fuse(state.states)
    else:
        tokens, hidden = previous.x, previous.hidden
    read = kv_length(state, i - 1)
    hidden, logits = drafter.read(tokens, hidden, positions, None if read is None else max(1, read))
    return drawn(logits, hidden, state.uniforms[:, i], sampling)
