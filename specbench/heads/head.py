"""The verifier's head: a small network that weighs target against draft at every position.

It reads only what is known before the drafted token: the hidden states, or the distributions, that
predict it. So ``v = w p + (1 - w) q`` is a true conditional distribution.

Source: DIVERSED, arXiv:2604.07622.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specbench.heads.registry import FEATURES, LINEAR, MLP
from specbench.methods.verdict import Positions


def hidden_states(at: Positions) -> Tensor:
    """Return both hidden states side by side, ``[K, hidden_q + hidden_p]``, as the release does."""
    return torch.cat((at.h_q, at.h_p), -1)


def features(at: Positions) -> Tensor:
    """Return what the two distributions look like, ``[K, 10]``, whatever the models' widths.

    Entropies, the two highest probabilities of each, the probability of either's favourite under
    the other, total variation and agreement; of the unfiltered distributions at temperature 1, so
    that a head sees the same in training and at every temperature.
    """
    p, q = at.p1, at.q1
    top_p, top_q = p.topk(2), q.topk(2)
    favourite_p, favourite_q = top_p.indices[:, :1], top_q.indices[:, :1]
    columns = (
        torch.special.entr(p).sum(-1, keepdim=True),
        torch.special.entr(q).sum(-1, keepdim=True),
        top_p.values,
        top_q.values,
        p.gather(-1, favourite_q),
        q.gather(-1, favourite_p),
        (p - q).abs().sum(-1, keepdim=True) / 2,
        (favourite_p == favourite_q).to(p),
    )
    return torch.cat(columns, -1)


class Kind(NamedTuple):
    """A kind of head: what it reads, ``[K, D]``, D by the models' widths, and its hidden units."""

    read: Callable[[Positions], Tensor]
    width: Callable[[int, int], int]
    hidden: int = 0


KINDS = {
    LINEAR: Kind(hidden_states, lambda hidden_p, hidden_q: hidden_q + hidden_p),
    MLP: Kind(hidden_states, lambda hidden_p, hidden_q: hidden_q + hidden_p, hidden=32),
    FEATURES: Kind(features, lambda hidden_p, hidden_q: 10, hidden=16),
}


class Head(nn.Module):
    """Two scores per position, the draft's first, and a two-way softmax over them.

    An untrained head gives ``initial_weight`` to the target everywhere; ``seed`` draws the hidden
    layer. ``sizes`` are the widths of the target's and the draft's hidden states.
    """

    def __init__(
        self, kind: str, sizes: tuple[int, int], initial_weight: float = 0.5, seed: int = 0
    ) -> None:
        super().__init__()
        self.kind = kind
        self.read, width, hidden = KINDS[kind].read, KINDS[kind].width(*sizes), KINDS[kind].hidden
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
        """Return the weight on the target ``[K]`` from what ``read`` gave, ``[K, D]``."""
        inputs = inputs.to(self.summary.weight.dtype)
        if self.hidden is not None:
            inputs = nn.functional.silu(self.hidden(inputs))
        scores: Tensor = self.summary(inputs)
        # A softmax over two scores is the sigmoid of their difference.
        return (scores[..., 1] - scores[..., 0]).sigmoid()

    def weigh(self, at: Positions) -> Tensor:
        """Return the weight on the target ``[K]`` at K positions."""
        weight: Tensor = self(self.read(at))
        return weight
