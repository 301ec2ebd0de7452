"""A model computing in float32 without being held in float32."""

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
    """Let a model compute in float32 while the context lasts.

    The weights of a module are float32 only while it runs, in memory that the next one uses again.

    Args:
        embedding: What it gives is made float32, its weights are not.
        layers: Modules that must not hold each other.
        output: The last layer.
        rows: Logits that it computes, the first of them.
    """
    spare: dict[tuple[Any, ...], Tensor] = {}
    handles = [embedding.register_forward_hook(lambda module, inputs, given: given.float())]
    for layer in layers:
        handles += _widened(layer, None, spare)
    handles += _widened(output, rows, spare)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _widened(
    module: nn.Module, rows: int | None, spare: dict[tuple[Any, ...], Tensor]
) -> list[RemovableHandle]:
    stored: list[tuple[Tensor, Tensor]] = []

    def widen(*_: Any) -> None:
        for number, weights in enumerate(chain(module.parameters(), module.buffers())):
            if weights.is_floating_point() and weights.dtype != torch.float32:
                data = weights.data[:rows]
                place = (number, data.shape, data.device)
                if place not in spare:
                    spare[place] = torch.empty_like(data, dtype=torch.float32)
                stored.append((weights, weights.data))
                weights.data = spare[place].copy_(data)

    def restore(*_: Any) -> None:
        for weights, data in stored:
            weights.data = data
        stored.clear()

    return [
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(restore, always_call=True),
    ]
