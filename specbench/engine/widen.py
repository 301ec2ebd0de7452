"""A model computing in float32 without being held in float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torch import Tensor, nn


@contextmanager
def in_float32(
    embedding: nn.Module, layers: Iterable[nn.Module], output: nn.Module, rows: int
) -> Iterator[None]:
    """Let a model compute in float32 while the context lasts.

    The weights of each module are float32 only while it runs, so that there is memory for it.

    Args:
        embedding: What it gives is made float32, its weights are not.
        layers: Modules that must not hold each other.
        output: The last layer.
        rows: Logits that it computes, the first of them.
    """
    handles = [embedding.register_forward_hook(lambda module, inputs, given: given.float())]
    for module, most in chain(((layer, None) for layer in layers), ((output, rows),)):
        handles += _widened(module, most)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _widened(module: nn.Module, rows: int | None) -> list[Any]:
    stored: list[tuple[Tensor, Tensor]] = []

    def widen(*_: Any) -> None:
        for weights in chain(module.parameters(), module.buffers()):
            if weights.is_floating_point():
                stored.append((weights, weights.data))
                weights.data = weights.data[:rows].float()

    def restore(*_: Any) -> None:
        for weights, data in stored:
            weights.data = data
        stored.clear()

    return [
        module.register_forward_pre_hook(widen),
        module.register_forward_hook(restore, always_call=True),
    ]
