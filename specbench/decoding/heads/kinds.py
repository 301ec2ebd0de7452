"""Kinds of head: functions of what is known before a token is drafted.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from specbench.methods.lazy import Tensor, torch
from specbench.methods.verdict import BLOCK, Positions, entropy_of, in_blocks

LINEAR, FEATURES = "linear", "features"


class HeadKind(NamedTuple):
    """A kind of head: its inputs ``[K, D]``, and the network on them."""

    name: str
    description: str
    inputs: Callable[[Positions], Tensor]
    width: int | None  # D; None for both models' hidden sizes, so that a head fits one pair
    hidden: int = 0  # units of a hidden layer; 0 for none
    standardised: bool = False  # inputs are shifted and scaled; see ``Head.standardise``


def hidden_states(at: Positions) -> Tensor:
    """Return both hidden states ``[K, hidden_q + hidden_p]``, in the order of the release."""
    return torch.cat((at.h_q, at.h_p), -1)


def features(at: Positions) -> Tensor:
    """Return features of the two distributions ``[K, 10]``, independent of the models' widths.

    They are the entropies, the two highest probabilities of each model, the probability of each
    model's argmax under the other, total variation, and agreement of the argmax. They use the
    unfiltered distributions at temperature 1, so a head's input does not depend on the temperature.
    """
    p, q = at.p1, at.q1
    (top_p, favourite_p), (top_q, favourite_q) = _top_two(p), _top_two(q)
    columns = (
        entropy_of(p)[:, None],
        entropy_of(q)[:, None],
        top_p,
        top_q,
        p.gather(-1, favourite_q),
        q.gather(-1, favourite_p),
        (p - q).abs_().sum(-1, keepdim=True) / 2,
        (favourite_p == favourite_q).to(p),
    )
    return torch.cat(columns, -1)


def _top_two(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two largest numbers of rows ``[K, V]``, and the tokens ``[K, 1]`` of the largest.

    Both are in the two blocks with the largest maxima, which are found faster than by ``topk``.
    """
    blocks = in_blocks(rows, -torch.inf)
    best = blocks.amax(-1).topk(min(2, blocks.shape[1])).indices
    top = blocks.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1).topk(2)
    first = top.indices[:, :1]
    return top.values, BLOCK * best.gather(1, first // BLOCK) + first % BLOCK


KINDS = {
    kind.name: kind
    for kind in (
        HeadKind(
            LINEAR, "one linear layer on both hidden states, the paper's", hidden_states, width=None
        ),
        HeadKind(
            FEATURES,
            "a small network on entropies, top probabilities and disagreement of the two "
            "distributions; fits any pair",
            features,
            width=10,
            hidden=16,
            standardised=True,
        ),
    )
}
"""Every kind by name."""
