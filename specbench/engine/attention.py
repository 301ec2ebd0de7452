"""Attention that reads each key head once for all query heads that share it.

Transformers' SDPA does so for one token; for several under a mask it first writes the whole cache
anew, once for each query head. Verification would pay for that in every layer and autoregressive
decoding would not. Here the query heads of a key head are tokens of one head instead: the same
products and sums, and no key is copied.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SDPA = "sdpa"
GROUPED = "grouped_sdpa"
# Longer pieces are prompts: their products outweigh the copies, and their masks are large.
MOST_TOKENS = 32
# Besides a scale, a layer may say what the mask says already and what nothing depends on.
PLAIN = frozenset({"scaling", "is_causal", "position_ids", "sliding_window", "use_cache"})


def group_heads(model: PreTrainedModel) -> int:
    """Let a model's attention take a key head's query heads together under a grouped mask.

    Its own forward pass makes no such mask and remains Transformers' own. A model in which every
    query head has a key head, or that was loaded with another attention, is left as it is.

    Returns:
        Query heads that can be taken together; 1 where it is left as it is.
    """
    config = model.config.get_text_config()
    heads: int = getattr(config, "num_attention_heads", 1)
    groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    if groups > 1 and config._attn_implementation == SDPA:
        model.set_attn_implementation(GROUPED)
    return groups if config._attn_implementation == GROUPED else 1


def grouped_mask(mask: Tensor, groups: int) -> Tensor:
    """Return the mask ``[B, 1, groups * k, seen]`` of heads with masks ``[B, 1, k, seen]``."""
    return mask.repeat(1, 1, groups, 1)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as Transformers' SDPA does; under a grouped mask without repeating keys.

    Queries are ``[B, heads, k, width]``, keys and values ``[B, key heads, seen, width]``. With any
    mask but that of ``grouped_mask``, or with more options than ``PLAIN``, such as dropout, a soft
    cap or sinks, the call is handed on.

    Returns:
        ``[B, k, heads, width]``, and no weights.
    """
    rows, heads, k, width = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None or groups == 1 or attention_mask.shape[2] != groups * k:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if any(_asked(option) for name, option in options.items() if name not in PLAIN):
        own = attention_mask[:, :, :k]
        return sdpa_attention_forward(module, query, key, value, own, **options)
    together = query.reshape(rows, key.shape[1], groups * k, width)
    scale = options.get("scaling")
    mixed = scaled_dot_product_attention(together, key, value, attention_mask, scale=scale)
    return mixed.reshape(rows, heads, k, -1).transpose(1, 2).contiguous(), None


def _asked(option: Any) -> bool:
    return isinstance(option, Tensor) or bool(option)


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
