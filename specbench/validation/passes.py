"""Distributions of texts by plain passes, processed without the decoding loop's code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampling
from specbench.engine.pair import Model
from specbench.engine.passes import plain_pass


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
