"""A key-value cache with buffers that are allocated once and written by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache

from specbench.errors import RunError

# Capacities are multiples of this, so that requests of similar length share one allocation.
CAPACITY_STEP = 256


def capacity_for(positions: int) -> int:
    """Return the number of positions to allocate if ``positions`` are needed."""
    return -(-positions // CAPACITY_STEP) * CAPACITY_STEP


def context_length(config: PretrainedConfig) -> int | None:
    """Return a model's context length; None if its configuration does not give one.

    For a model with two rotary tables (`longrope`: Phi-3.5), this is the length of the first. A
    longer text needs the other table from its first token on, so cached keys have the wrong angles.
    """
    positions: int | None = getattr(config, "max_position_embeddings", None)
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") == "longrope":
        positions = rotary["original_max_position_embeddings"]
    return positions


def require_context(context: int | None, prompt: int, new: int) -> None:
    """Raise ``RunError`` if ``prompt`` and ``new`` tokens exceed the context."""
    if context is not None and prompt + new > context:
        raise RunError(
            f"a prompt of {prompt} tokens and {new} new ones exceed the context of {context}: "
            "shorten the prompt or lower --max-new-tokens"
        )


def head_sizes(config: PretrainedConfig) -> tuple[int, int]:
    """Return the number of key heads and the width of a head, which some configurations omit."""
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width: int | None = getattr(config, "head_dim", None)
    return heads, width or config.hidden_size // config.num_attention_heads


def cache_bytes(config: PretrainedConfig, dtype: torch.dtype, tokens: float) -> float:
    """Return the bytes of the keys and values of a text of so many tokens in all layers."""
    heads, width = head_sizes(config)
    size: float = 2 * config.num_hidden_layers * heads * width * tokens * dtype.itemsize
    return size


class PromptStates(NamedTuple):
    """The keys and values of a prompt of T tokens, all but the last."""

    keys: list[Tensor]  # of each layer, [heads, T - 1, width]
    values: list[Tensor]  # the same
    seconds: float  # of reading the prompt

    @property
    def size(self) -> int:
        """Bytes of the states."""
        return sum(states.nbytes for states in (*self.keys, *self.values))


class SlotCache(Cache):
    """Full-length buffers for the keys and values of every layer; position i is slot i.

    Nothing is ever removed: the states of a rejected draft are overwritten later, and masked until
    then. Sliding-window layers get full-length buffers as well, because a ring buffer could not be
    rolled back; the attention mask applies the window. Each of the ``rows`` of the batch has
    ``capacity`` slots. ``devices`` holds the device of each layer.

    The states of the last prompts are stored apart, so that a prompt is read once for all cells.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        capacity: int,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        rows: int = 1,
    ) -> None:
        super().__init__(layers=[])
        heads, width = head_sizes(config)
        shape = (rows, heads, capacity, width)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for device in devices]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for device in devices]
        self.rows = rows
        self.capacity = capacity
        # by the tokens of the prompt, that of the last use at the end
        self.prompts: dict[tuple[int, ...], PromptStates] = {}
        self.place(torch.zeros(1, 0, dtype=torch.long), 0)

    def store(self, prompt: Tensor, row: int, seconds: float, most_bytes: int) -> None:
        """Copy the states of a prompt ``[T]`` that was read into a row.

        ``seconds`` is how long reading the prompt took. Prompts that were not used for longest are
        dropped, so that all together have at most ``most_bytes``.
        """
        keys, values = (
            [buffer[row, :, : len(prompt) - 1].clone() for buffer in buffers]
            for buffers in (self.keys, self.values)
        )
        self.prompts[tuple(prompt.tolist())] = PromptStates(keys, values, seconds)
        excess = sum(states.size for states in self.prompts.values()) - most_bytes
        while excess > 0:
            excess -= self.prompts.pop(next(iter(self.prompts))).size

    def restore(self, prompt: Tensor, row: int) -> float:
        """Copy stored states into a row; return the seconds of reading the prompt, 0 without."""
        tokens = tuple(prompt.tolist())
        if (states := self.prompts.pop(tokens, None)) is None:
            return 0.0
        self.prompts[tokens] = states
        buffers, copies = (*self.keys, *self.values), (*states.keys, *states.values)
        for buffer, copy in zip(buffers, copies, strict=True):
            buffer[row, :, : len(tokens) - 1] = copy
        return states.seconds

    def place(
        self, at: Tensor, kv_length: int | None, rows: slice | None = None
    ) -> tuple[int, Tensor | slice]:
        """Choose the slots of the next states, in some rows or, with None, in all.

        ``at`` holds the slots ``[B, k]`` of k tokens per row, or ``[1, k]`` if rows share them and
        they end at ``kv_length``, when given. Returns the number of slots that the layers attend
        to, the first ones, and ``at`` itself or as a slice, which is faster on a CPU.
        """
        slots, k = self.capacity if kv_length is None else kv_length, at.shape[1]
        last = kv_length is not None and len(at) == 1 and k <= kv_length
        self._at, self._kv_length = slice(slots - k, slots) if last else at, slots
        self._rows = rows
        return slots, self._at

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write states ``[B, heads, k, width]``; return the keys and values to attend to."""
        keys, values, positions = self.keys[layer_idx], self.values[layer_idx], self._at
        if self._rows is not None:
            keys, values = keys[self._rows], values[self._rows]
        if isinstance(positions, slice):
            keys[:, :, positions] = key_states
            values[:, :, positions] = value_states
            return keys[:, :, : self._kv_length], values[:, :, : self._kv_length]
        if positions.device != keys.device:
            positions = positions.to(keys.device)
        if len(positions) == 1:
            slots = positions[0]
            keys.index_copy_(2, slots, key_states)
            values.index_copy_(2, slots, value_states)
        else:
            rows = torch.arange(len(positions), device=positions.device)[:, None]
            keys[rows, :, positions] = key_states.transpose(1, 2)
            values[rows, :, positions] = value_states.transpose(1, 2)
        return keys[:, :, : self._kv_length], values[:, :, : self._kv_length]

    def clear(self) -> None:
        """Set all states to zero, but for those of stored prompts."""
        for states in (*self.keys, *self.values):
            states.zero_()

    def select(self, rows: Tensor, kv_length: int) -> None:
        """Keep these rows ``[B']``, in this order, with their first slots; rows may repeat."""
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                chosen = buffer.new_zeros(len(rows), *buffer.shape[1:])
                chosen[:, :, :kv_length] = buffer[rows.to(buffer.device), :, :kv_length]
                buffers[layer] = chosen
        self.rows = len(rows)
