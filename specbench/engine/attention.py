"""Attention that reads each key head once for all query heads that share it.

Transformers' SDPA does so for a single token. For several tokens under a mask, it first copies the
whole cache once per query head. Verification would pay for these copies in every layer, while
autoregressive decoding would not. Here the query heads of a key head become tokens of one head: the
products and sums are the same, and no key is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SDPA = "sdpa"
GROUPED = "grouped_sdpa"
# Longer inputs are prompts: their products outweigh the copies, and their masks are large.
MOST_TOKENS = 32
# Options other than a scale that the mask already covers or that have no effect.
PLAIN = frozenset({"scaling", "is_causal", "position_ids", "sliding_window", "use_cache"})
Rotary = Mapping[str, tuple[Tensor, Tensor]]  # cosines and sines by kind of layer


def angles_at(tables: Rotary, at: Tensor | slice) -> Rotary:
    """Return cosines and sines ``[B, k, width]`` of positions ``[B, k]`` or of a slice."""
    if isinstance(at, slice):
        return {kind: (cos[None, at], sin[None, at]) for kind, (cos, sin) in tables.items()}
    return {kind: (cos[at], sin[at]) for kind, (cos, sin) in tables.items()}


def visible(at: Tensor, kv_length: int, window: int | None) -> Tensor:
    """Return the causal mask ``[B, 1, k, kv_length]`` of tokens at positions ``[B, k]``."""
    slots = torch.arange(kv_length, device=at.device)
    mask = slots <= at[..., None]
    if window is not None:
        mask &= slots > at[..., None] - window
    return mask[:, None]


def group_heads(model: PreTrainedModel) -> int:
    """Switch a model to grouped attention under a grouped mask; return query heads per key head.

    The model's own forward pass makes no such mask and stays unchanged. A model is left unchanged,
    with 1, if every query head has its own key head, or if it was loaded with another attention.
    """
    config = model.config.get_text_config()
    heads: int = getattr(config, "num_attention_heads", 1)
    groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    if groups > 1 and config._attn_implementation == SDPA:
        model.set_attn_implementation(GROUPED)
    return groups if config._attn_implementation == GROUPED else 1


def grouped_mask(mask: Tensor, groups: int) -> Tensor:
    """Return a mask ``[B, 1, k, kv_length]`` for groups: ``[B, 1, groups * k, kv_length]``."""
    return mask.repeat(1, 1, groups, 1)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention as Transformers' SDPA does, without repeating keys under a grouped mask.

    Queries are ``[B, heads, k, width]``, keys and values ``[B, key heads, kv_length, width]``. The
    call is passed on if the mask is not from ``grouped_mask``, or if options other than ``PLAIN``
    are set, such as dropout, a soft cap or sinks. The output is ``[B, k, heads, width]``.
    """
    rows, heads, k, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None or groups == 1 or attention_mask.shape[2] != groups * k:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if any(isinstance(v, Tensor) or v for name, v in options.items() if name not in PLAIN):
        mask = attention_mask[:, :, :k]
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    grouped = query.reshape(rows, key.shape[1], groups * k, width)
    scale = options.get("scaling")
    mixed = scaled_dot_product_attention(grouped, key, value, attention_mask, scale=scale)
    return mixed.reshape(rows, heads, k, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
