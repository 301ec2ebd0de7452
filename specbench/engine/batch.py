"""Many texts read in lockstep: what roll-outs are made with.

Texts are padded on the left, so that the newest token of every row has the same position. Rotary
attention looks at distances only, so the padding changes nothing but the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.cache import RewindableCache
from specbench.engine.runner import Runner


class Batch:
    """One model reading several texts over one cache that is allocated once.

    Args:
        runner: The model.
        prompts: B prompts, each a list of token ids.
        new_tokens: Tokens that may follow each of them.
    """

    def __init__(self, runner: Runner, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self.runner = runner
        width = max(len(prompt) for prompt in prompts)
        device = runner.device
        self.cache = RewindableCache(
            runner.config, width + new_tokens, runner.devices, runner.dtype, rows=len(prompts)
        )
        self.rotary, self.causal = runner.tables(width + new_tokens)
        padding = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
        index = torch.arange(width + new_tokens, device=device)
        self.real = index >= padding[:, None]
        self.prompts = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts]).to(device)

    def start(self) -> tuple[Tensor, Tensor]:
        """Read the prompts; return as ``read`` does."""
        return self.read(self.prompts)

    @torch.no_grad()
    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read the next k tokens of every row ``[B, k]``.

        Returns:
            Probabilities of the token after the last one ``[B, V]``, float32, and the hidden
            states ``[B, hidden]`` that they come from.
        """
        start, end = self.cache.position, self.cache.position + tokens.shape[1]
        seen = self.real[:, None, None, :end]
        if start == 0:
            # A padding token sees itself: one that saw nothing would become NaN.
            seen = seen | torch.eye(end, dtype=torch.bool, device=seen.device)
        masks = {kind: mask[:, :, start:end, :end] & seen for kind, mask in self.causal.items()}
        hidden = self.runner.through_layers(tokens, self.cache, self.rotary, masks)[:, -1]
        return self.runner.logits(hidden).softmax(-1), hidden

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may be named more than once."""
        self.cache.select(rows)
        self.real = self.real[rows]
