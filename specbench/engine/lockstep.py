"""Many texts read in lockstep: what roll-outs are made with.

Texts are padded on the left, so that the newest token of every row has the same position. Rotary
attention looks at distances only, so the padding changes nothing but the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.cache import SlotCache
from specbench.engine.runner import Runner, angles_at, require_context, visible


class LockstepBatch:
    """One model reading B prompts, and up to ``new_tokens`` after each, over one cache.

    Raises:
        RunError: They do not fit the model's context.
    """

    def __init__(self, runner: Runner, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self.runner = runner
        width = max(len(prompt) for prompt in prompts)
        require_context(runner.context, width, new_tokens)
        capacity, device = width + new_tokens, runner.device
        self.cache = SlotCache(
            runner.config, capacity, runner.devices, runner.dtype, rows=len(prompts)
        )
        self.position = 0  # of the next token of every row
        self.rotary, self.windows = runner.tables(capacity)
        padding = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
        self.real = torch.arange(capacity, device=device) >= padding[:, None]
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
        start, end = self.position, self.position + tokens.shape[1]
        at = torch.arange(start, end, device=tokens.device)[None]
        real = self.real[:, None, None, :end]
        if start == 0:
            # A padding token sees itself: one that saw nothing would become NaN.
            real = real | torch.eye(end, dtype=torch.bool, device=real.device)
        masks = {kind: visible(at, end, window) & real for kind, window in self.windows.items()}
        self.cache.set_positions(at, end)
        angles = angles_at(self.rotary, at)
        hidden = self.runner.through_layers(tokens, self.cache, angles, masks)[:, -1]
        self.position = end
        return self.runner.logits(hidden).softmax(-1), hidden

    def select(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order; a row may be named more than once."""
        self.cache.select(rows, self.position)
        self.real = self.real[rows]
