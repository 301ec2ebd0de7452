"""The verifier's head: a small network that predicts the weight on the target at each position.

Its input is known before the drafted token: the hidden states or the distributions that predict it.
Therefore ``v = w p + (1 - w) q`` is a valid conditional distribution.

Source: DIVERSED, arXiv:2604.07622.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specbench.decoding.heads.kinds import KINDS
from specbench.methods.verdict import Positions

SMALLEST_SPREAD = 1e-3  # of an input


class Head(nn.Module):
    """A softmax over two scores per position, the draft's first.

    An untrained head has weight ``initial_weight`` on the target everywhere; ``seed`` initialises
    the hidden layer. ``sizes`` are the hidden sizes of target and draft.
    """

    def __init__(
        self, kind: str, sizes: tuple[int, int], initial_weight: float = 0.5, seed: int = 0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.shift: Tensor
        self.scale: Tensor
        _, self.inputs, width_of_kind, hidden, self.standardised = KINDS[kind]
        self.width = width = width_of_kind or sum(sizes)
        if self.standardised:
            self.register_buffer("shift", torch.zeros(width))
            self.register_buffer("scale", torch.ones(width))
        self.hidden: nn.Linear | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if hidden:
                self.hidden, width = nn.Linear(width, hidden), hidden
            self.summary = nn.Linear(width, 2)
        nn.init.zeros_(self.summary.weight)
        share = torch.tensor([1 - initial_weight, initial_weight])
        self.summary.bias = nn.Parameter(share.log())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the weight on the target ``[K]`` from inputs ``[K, D]``; see ``inputs``."""
        inputs = inputs.to(self.summary.weight.dtype)
        if self.standardised:
            inputs = (inputs - self.shift) * self.scale
        if self.hidden is not None:
            inputs = nn.functional.silu(self.hidden(inputs))
        scores: Tensor = self.summary(inputs)
        # A softmax over two scores is the sigmoid of their difference.
        return (scores[..., 1] - scores[..., 0]).sigmoid()

    def standardise(self, mean: Tensor, spread: Tensor) -> None:
        """Shift and scale each input to mean 0 and variance 1; both are ``[D]``.

        At most positions the models agree, so the features hardly vary there. Without scaling,
        training often ends at one of the models.
        """
        self.shift = mean.to(self.shift)
        self.scale = 1 / spread.clamp_min(SMALLEST_SPREAD).to(self.scale)

    def weigh(self, at: Positions) -> Tensor:
        """Return the weight on the target ``[K]`` at K positions."""
        weight: Tensor = self(self.inputs(at))
        return weight
