"""Logits of a text by the model library's own pass, without specbench's cache and engine.

Nothing here shares code with the decoding loop, so that a fault in its positions, masks, cache
slots or processing of logits shows as a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specbench.decoding.drafters.drafter import HeadDrafter
from specbench.decoding.drafters.unrolled import unrolled
from specbench.decoding.sampling import Sampling
from specbench.engine.runner import Model, Runner

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


@torch.inference_mode()
def head_pass(
    drafter: HeadDrafter,
    target: Runner,
    texts: Sequence[Sequence[int]],
    position: Tensor,
    hidden: bool,
) -> Pass:
    """Run a head that drafts over B texts of equal length, as ``plain_pass`` runs a model.

    ``position`` ``[B, k]`` is the index of each of the last k tokens within its round, from 0. The
    head drafts from where the round began, and the target's own pass gives its states there.
    """
    tokens = torch.tensor([list(text)[:-1] for text in texts], device=target.device)
    states = states_after(target, tokens, drafter.head.config.layers)
    last = tokens.shape[1] + 1 - position.shape[1] + torch.arange(position.shape[1])
    starts = (last.to(position.device) - 2 - position).clamp_min(0)  # the last state of the target
    rows = torch.arange(len(tokens), device=tokens.device)[:, None]
    drafts = states.new_zeros(*position.shape, drafter.head.config.width)
    for depth, state in enumerate(unrolled(drafter.head, tokens, states, int(position.max()) + 1)):
        drafts = torch.where((position == depth)[..., None], state[rows, starts], drafts)
    logits = drafter.logits(drafts.flatten(0, 1)).unflatten(0, position.shape)
    return Pass(logits, drafts if hidden else torch.empty(0))


def head_along(
    drafter: HeadDrafter, target: Runner, text: Sequence[int], last: int, depths: int
) -> Iterator[Tensor]:
    """Yield a head's logits ``[last, V]`` at each depth of rounds along a text.

    A round starts at each of the ``last`` tokens, and all of its drafts are the text's own tokens.
    Drafts beyond the end have no meaning.
    """
    tokens = torch.tensor([list(text)], device=target.device)
    states = states_after(target, tokens, drafter.head.config.layers)
    read = (len(text) - last - 2 + torch.arange(last, device=target.device)).clamp_min(0)
    for hidden in unrolled(drafter.head, tokens, states, depths):
        yield drafter.logits(hidden[0, read])


def states_after(target: Runner, tokens: Tensor, layers: Sequence[int]) -> Tensor:
    """Return the states ``[B, T, layers * hidden]`` after layers in the model's own pass."""
    states: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            states[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    modules = [target.base.embed_tokens, *target.base.layers]
    handles = [modules[layer].register_forward_hook(keep(layer)) for layer in layers]
    target.base(tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.cat([states[layer] for layer in layers], -1)


def laws_along(model: Model, text: Sequence[int], last: int, sampling: Sampling) -> Tensor:
    """Return a model's laws ``[last, V]`` of the last tokens of a text."""
    return processed(plain_pass(model, [text], last).logits[0], sampling)


def processed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return probabilities ``[K, V]`` in float64 after temperature, top-k, top-p and min-p."""
    p = (logits.double() / sampling.temperature).softmax(-1)
    if sampling.top_k is sampling.top_p is sampling.min_p is None:
        return p
    ordered, tokens = p.sort(-1, descending=True)
    if sampling.top_k is not None:
        ordered[:, sampling.top_k :] = 0
        ordered = ordered / ordered.sum(-1, keepdim=True)
    if sampling.top_p is not None:
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0)
    if sampling.min_p is not None:
        ordered = ordered.masked_fill(ordered < sampling.min_p * ordered[:, :1], 0)
    filtered = torch.zeros_like(p).scatter(-1, tokens, ordered)
    return filtered / filtered.sum(-1, keepdim=True)
