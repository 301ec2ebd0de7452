"""A key-value cache whose buffers are allocated once and written slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache


class SlotCache(Cache):
    """Keys and values of every layer in full-length buffers; the token at position i has slot i.

    Nothing is ever removed: what a rejected draft left behind is overwritten, and until then no
    mask lets it be seen. Sliding-window layers get full-length buffers as well, because a wrapped
    window could not be taken back; the attention mask does the window. Each of the ``rows``, held
    side by side, has ``capacity`` slots; ``devices`` are those of each layer's buffers.
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
        self.rows = rows
        self.capacity = capacity
        self.set_positions(torch.zeros(1, 0, dtype=torch.long), 0)

    def set_positions(self, at: Tensor | slice, seen: int, row: int | None = None) -> None:
        """Set where the next states go: in one row, or with None in all.

        ``at`` are slots ``[B, k]`` of k tokens of every row, ``[1, k]`` where rows share them, or a
        slice where these are neighbours, which is quicker on a CPU. The layers get to see the first
        ``seen`` slots.
        """
        self._at, self._seen = at, seen
        self._row = None if row is None else slice(row, row + 1)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write states ``[B, heads, k, width]`` at the positions set; return what may be seen."""
        keys, values, at = self.keys[layer_idx], self.values[layer_idx], self._at
        if self._row is not None:
            keys, values = keys[self._row], values[self._row]
        if isinstance(at, slice):
            keys[:, :, at] = key_states
            values[:, :, at] = value_states
            return keys[:, :, : self._seen], values[:, :, : self._seen]
        if at.device != keys.device:
            at = at.to(keys.device)
        if len(at) == 1:
            slots = at[0]
            keys.index_copy_(2, slots, key_states)
            values.index_copy_(2, slots, value_states)
        else:
            rows = torch.arange(len(at), device=at.device)[:, None]
            keys[rows, :, at] = key_states.transpose(1, 2)
            values[rows, :, at] = value_states.transpose(1, 2)
        return keys[:, :, : self._seen], values[:, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of slots seen; layers that are driven one by one do not ask."""
        return self._seen

    def select(self, rows: Tensor, seen: int) -> None:
        """Keep these rows, in this order, with their first slots; one may be named repeatedly."""
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                chosen = buffer.new_zeros(len(rows), *buffer.shape[1:])
                chosen[:, :, :seen] = buffer[rows.to(buffer.device), :, :seen]
                buffers[layer] = chosen
        self.rows = len(rows)
