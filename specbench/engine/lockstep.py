"""Decoding many texts in lockstep, for roll-outs.

In PyTorch, texts are padded on the left, so that the newest tokens of all rows have the same
position. Rotary attention depends on distances only, so the padding changes nothing but the mask.
In llama.cpp, each text is a sequence of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench.engine.attention import angles_at, visible
from specbench.engine.cache import SlotCache, require_context
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner

MOST_PADDED = 1.25  # prompts up to so many times as long as the shortest one are read with it


class Lockstep(Protocol):
    """One model that reads B texts together, with a cache of its own."""

    def start(self) -> tuple[Tensor, Tensor]:
        """Run the prompts; return logits ``[B, V]`` and states ``[B, hidden]`` as ``forward``."""

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run the next k tokens of every row ``[B, k]``.

        Return next-token logits ``[B, V]``, float32, and hidden states ``[B, hidden]`` after them.
        """

    def select(self, rows: Tensor) -> None:
        """Keep these rows ``[B']``, in this order; rows may repeat."""


def lockstep(
    pair: LoadedPair, prompts: Sequence[Sequence[int]], new_tokens: int, texts: int
) -> list[Lockstep]:
    """Return batches of prompts, of target and draft, that become up to ``texts`` by ``select``."""
    begin: Callable[..., Lockstep] = pair.library.lockstep or LockstepBatch
    return [begin(model, prompts, new_tokens, texts) for model in (pair.target, pair.draft)]


class LockstepBatch:
    """A runner and a cache for B prompts and ``new_tokens`` after each; ``select`` grows it."""

    def __init__(
        self, runner: Runner, prompts: Sequence[Sequence[int]], new_tokens: int, texts: int = 0
    ) -> None:
        self.runner = runner
        self.prompts = prompts
        self.width = width = max(len(prompt) for prompt in prompts)
        require_context(runner.context, width, new_tokens)
        capacity, device = width + new_tokens, runner.device
        self.cache = SlotCache(
            runner.config, capacity, runner.devices, runner.dtype, rows=len(prompts)
        )
        self.position = 0  # of the next token in all rows
        self.rotary, self.windows = runner.tables(capacity)
        self.shortest_first = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        lengths = torch.tensor([len(prompts[i]) for i in self.shortest_first], device=device)
        self.real = torch.arange(capacity, device=device) >= (width - lengths)[:, None]

    def start(self) -> tuple[Tensor, Tensor]:
        """Run the prompts; return logits ``[B, V]`` and states ``[B, hidden]`` as ``forward``.

        Prompts of similar lengths are read together, since padding takes as long as other tokens.
        """
        ordered = [self.prompts[i] for i in self.shortest_first]
        outputs, first = [], 0
        while first < len(ordered):
            longest = MOST_PADDED * len(ordered[first])
            end = first + sum(len(prompt) <= longest for prompt in ordered[first:])
            group, width = ordered[first:end], len(ordered[end - 1])
            tokens = torch.tensor([[0] * (width - len(prompt)) + [*prompt] for prompt in group])
            self.position = self.width - width
            outputs.append(self._read(tokens.to(self.runner.device), slice(first, end)))
            first = end
        logits, hidden = (torch.cat(parts) for parts in zip(*outputs, strict=True))
        as_given = torch.tensor(self.shortest_first, device=logits.device).argsort()
        self.select(as_given)
        return logits[as_given], hidden[as_given]

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run the next k tokens of every row ``[B, k]``; see ``Lockstep.forward``."""
        return self._read(tokens, None)

    @torch.no_grad()
    def _read(self, tokens: Tensor, rows: slice | None) -> tuple[Tensor, Tensor]:
        start, end = self.position, self.position + tokens.shape[1]
        positions = torch.arange(start, end, device=tokens.device)[None]
        real = self.real if rows is None else self.real[rows]
        # A padding token attends to itself, since an empty row of the mask gives NaN.
        itself = torch.arange(end, device=tokens.device) == positions[0, :, None]
        real = real[:, None, None, :end] | itself
        masks = {
            kind: visible(positions, end, window) & real for kind, window in self.windows.items()
        }
        self.cache.place(positions, end, rows)
        angles = angles_at(self.rotary, positions)
        hidden = self.runner.through_layers(tokens, self.cache, angles, masks)[:, -1]
        self.position = end
        return self.runner.logits(hidden), hidden

    def select(self, rows: Tensor) -> None:
        """Keep these rows ``[B']``, in this order; rows may repeat."""
        self.cache.select(rows, self.position)
        self.real = self.real[rows]
