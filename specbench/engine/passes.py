"""Logits of texts by the model library's own pass, without specbench's cache and engine.

Nothing here shares code with the decoding loop, so that a fault in its positions, masks or cache
slots shows as a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specbench.engine.pair import Model
from specbench.engine.runner import Runner

MAX_NUMBERS = 2**26  # maximum size of a tensor of logits; more texts are split into parts


class Pass(NamedTuple):
    """A model's outputs for the last k tokens of B texts."""

    logits: Tensor  # [B, k, V], which predict these tokens
    hidden: Tensor  # [B, k, hidden], the states before the logits; empty unless requested


@torch.inference_mode()
def plain_pass(
    runner: Model, texts: Sequence[Sequence[int]], last: int, hidden: bool = False
) -> Pass:
    """Run B texts of equal length in one pass; return the outputs for their ``last`` k tokens.

    Texts that differ in their last token only are run once.
    """
    tokens = torch.tensor([list(text)[:-1] for text in texts], device=runner.device)
    tokens, rows = tokens.unique(dim=0, return_inverse=True)
    part = max(1, MAX_NUMBERS // (last * runner.vocabulary + tokens.shape[1] * runner.hidden_size))
    logits, states = [], []
    for few in tokens.split(part):
        part_logits, state = runner.plain(few, last, hidden)
        logits.append(part_logits)
        states.append(state)
    outputs = Pass(torch.cat(logits), torch.cat(states))
    return Pass(outputs.logits[rows], outputs.hidden[rows] if hidden else outputs.hidden)


def states_after(target: Runner, tokens: Tensor, layers: Sequence[int]) -> Tensor:
    """Return the states ``[B, T, layers * hidden]`` after layers in the model's own pass."""
    states: dict[int, Tensor] = {}

    def keep(layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        states[layer] = output[0] if isinstance(output, tuple) else output

    modules = [target.base.embed_tokens, *target.base.layers]
    handles = [modules[layer].register_forward_hook(partial(keep, layer)) for layer in layers]
    try:
        target.base(tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat([states[layer] for layer in layers], -1)
