"""Drafting with a module from every position of whole texts at once, without a cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbench.decoding.modules.module import DraftModule, rotary_tables


def unrolled(
    module: DraftModule, tokens: Tensor, states: Tensor, depths: int, start: int = 0
) -> Iterator[Tensor]:
    """Yield the module's states ``[B, T - start, H]`` of each depth after texts ``[B, T]``.

    ``states`` are the target's ``[B, T, layers * hidden]``. The module's at position t and depth i
    belong to the draft after token t + 1 + i of a round before which the target has read t + 1
    tokens, if the first i drafts are the text's own tokens. Rounds begin at positions from
    ``start`` on. Positions whose tokens are beyond the text's end have no meaning.
    """
    length = tokens.shape[1]
    positions = torch.arange(length + depths, device=tokens.device)
    cos, sin = (table.to(states.dtype) for table in rotary_tables(module.config.layer, positions))
    hidden, attend = module.fuse(states), _UnrolledAttention()
    for depth in range(depths):
        first = start if depth else 0  # every state of the target is attended to
        angles = (
            cos[None, depth + first : depth + length],
            sin[None, depth + first : depth + length],
        )
        hidden = module(tokens.roll(-1 - depth, 1)[:, first:], hidden, angles, attend)
        hidden = hidden if depth else hidden[:, start:]
        yield hidden


class _UnrolledAttention:
    """Attention of a draft at every position at once, depth by depth.

    At depth 0 a position attends to itself and earlier ones; at depth i also to its own drafts of
    depths 1 to i, but not to those of other positions.
    """

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the mixed values of the next depth; all are ``[B, heads, k, width]``.

        k is T at depth 0, and then the number of positions at which rounds begin.
        """
        groups = query.shape[1] // key.shape[1]
        self.keys.append(key.repeat_interleave(groups, 1))
        self.values.append(value.repeat_interleave(groups, 1))
        first, *own = self.keys
        if not own:
            return scaled_dot_product_attention(query, first, self.values[0], is_causal=True)
        rows, length = query.shape[2], first.shape[2]
        query = query * query.shape[-1] ** -0.5
        later = torch.ones(rows, length, dtype=torch.bool, device=query.device)
        later = later.triu(1 + length - rows)
        scores = (query @ first.mT).masked_fill(later, -torch.inf)
        own_scores = torch.stack([(query * key).sum(-1) for key in own], -1)
        weights = torch.cat((scores, own_scores), -1).softmax(-1)
        mixed = weights[..., :length] @ self.values[0]
        for depth, value in enumerate(self.values[1:]):
            mixed = mixed + weights[..., length + depth, None] * value
        return mixed
