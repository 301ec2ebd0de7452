"""A model in float32, whatever the dtype of its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def in_float32(
    embedding: nn.Module, layers: Iterable[nn.Module], output: nn.Module, rows: int
) -> Iterator[None]:
    """Make a model compute in float32, and only the first ``rows`` logits, within the context.

    A layer's weights are float32 only while it runs, in memory that the next layer reuses; of the
    embedding, only the output is converted. Layers must not be nested.
    """
    spare: dict[tuple[Any, ...], Tensor] = {}
    handles = [embedding.register_forward_hook(lambda module, inputs, given: given.float())]
    for layer in layers:
        handles += _widening_hooks(layer, None, spare)
    handles += _widening_hooks(output, rows, spare)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _widening_hooks(
    module: nn.Module, rows: int | None, spare: dict[tuple[Any, ...], Tensor]
) -> list[RemovableHandle]:
    stored: list[tuple[Tensor, Tensor]] = []

    def widen(*_: Any) -> None:
        for number, weights in enumerate(chain(module.parameters(), module.buffers())):
            if weights.is_floating_point() and weights.dtype != torch.float32:
                data = weights.data[:rows]
                key = (number, data.shape, data.device)
                if key not in spare:
                    spare[key] = torch.empty_like(data, dtype=torch.float32)
                stored.append((weights, weights.data))
                weights.data = spare[key].copy_(data)

    def restore(*_: Any) -> None:
        for weights, data in stored:
            weights.data = data
        stored.clear()

    return [
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(restore, always_call=True),
    ]
