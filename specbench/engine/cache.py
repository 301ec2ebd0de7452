"""A key-value cache that is allocated once and rewound by moving its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache


class RewindableCache(Cache):
    """Keys and values of every layer in full-length buffers; stale slots are overwritten.

    Sliding-window layers get full-length buffers as well, because a wrapped window could not be
    rewound; the attention mask does the window.

    Args:
        config: Text configuration of the model.
        capacity: Positions to allocate.
        devices: Where the buffers of each layer live.
        dtype: Their floating point type.
        rows: Sequences held side by side.

    Attributes:
        position: Number of tokens the cache holds; the next write goes there.
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
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None)
        width = width or config.hidden_size // config.num_attention_heads
        shape = (rows, heads, capacity, width)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for device in devices]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for device in devices]
        self.capacity = capacity
        self.position = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the states ``[rows, heads, k, width]`` at the position; return all up to there."""
        end = self.position + key_states.shape[-2]
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[:, :, self.position : end] = key_states
        values[:, :, self.position : end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens held."""
        return self.position

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named more than once."""
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                chosen = buffer.new_zeros(len(rows), *buffer.shape[1:])
                chosen[:, :, : self.position] = buffer[rows.to(buffer.device), :, : self.position]
                buffers[layer] = chosen
