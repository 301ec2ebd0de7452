"""Weights in the layout that oneDNN reads fastest, for bfloat16 on a CPU.

A product of a few tokens takes as long as reading its weights, and packed ones are read faster than
those of a linear layer (``tasks/measure/packed_products.py``). The weights themselves stay for
whatever else reads them; those of a file are mapped and need no further memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from specbench.engine.hardware import available_memory

FREE_SHARE = 2  # packed weights take at most 1/2 of the free memory
TOKENS = 16  # the rows of an AMX tile: the layout for one token is read slower there


def pack(model: nn.Module) -> None:
    """Let a model's linear layers multiply by packed copies of their weights.

    Nothing changes on a GPU, in other dtypes, without AVX-512 and without memory for the copies.
    """
    cpu = torch.device("cpu")
    layers = [
        module
        for module in model.modules()
        if type(module) is nn.Linear
        and (module.weight.dtype, module.weight.device) == (torch.bfloat16, cpu)
    ]
    size, free = sum(layer.weight.nbytes for layer in layers), available_memory(cpu)
    fits = free is None or FREE_SHARE * size <= free
    operators = torch.ops.mkldnn
    if not (
        fits and torch.backends.mkldnn.is_available() and operators._is_mkldnn_bf16_supported()
    ):
        return
    for layer in layers:
        packed = operators._reorder_linear_weight(layer.weight.detach(), TOKENS)
        vars(layer)["forward"] = partial(_product, layer, packed)


def _product(layer: nn.Linear, packed: Tensor, tokens: Tensor) -> Tensor:
    """Apply a linear layer; its packed weights have no gradients and no other dtype."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or tokens.dtype != packed.dtype:
        return linear(tokens, layer.weight, layer.bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(tokens, packed, layer.bias, "none", [], "")
    return product


def packed_layers(*models: nn.Module) -> list[nn.Module]:
    """Return the layers of models that multiply by packed weights; a model may be given twice."""
    layers = dict.fromkeys(layer for model in models for layer in model.modules())
    # Other libraries replace the method too, as accelerate does.
    return [
        layer for layer in layers if getattr(vars(layer).get("forward"), "func", None) is _product
    ]


@contextmanager
def unpacked(*models: nn.Module) -> Iterator[None]:
    """Multiply by the weights themselves within the context, as other libraries do."""
    layers = packed_layers(*models)
    packed = [vars(layer).pop("forward") for layer in layers]
    try:
        yield
    finally:
        for layer, forward in zip(layers, packed, strict=True):
            vars(layer)["forward"] = forward
