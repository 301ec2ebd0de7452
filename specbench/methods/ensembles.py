"""Ensembles v = w p + (1 - w) q of both models, with a fixed and with a learned weight."""

from __future__ import annotations

from collections.abc import Callable

from specbench.methods import laws
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import HEAD, Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

Head = Callable[[Positions], "Tensor"]
"""`head(at) -> w [K]`, the weight on the target in [0, 1] at K positions."""

WEIGHT = Parameter(
    "weight", 0.5, "w of p; 1 is sd, 0 the draft alone", ge=0, le=1, exact=1, sign="w="
)


@rule(
    WEIGHT,
    summary="ensemble w p + (1 - w) q with one weight",
    source="arXiv:2604.07622",
    law=laws.static,
)
def static(at: Positions, x: Tensor, *, weight: float | Tensor) -> Verdict:
    """Verify against the ensemble v = w p + (1 - w) q.

    At temperature 0 the token emitted is argmax(w p1 + (1 - w) q1).

    `weight` is w in [0, 1] on the target, one number or one per position [K]; 1 is `sd`, 0 accepts
    every draft.

    Source: DIVERSED, arXiv:2604.07622, the static ensemble.
    """
    w = weight_of_each(weight, at, x)
    share = w.unsqueeze(-1)
    v = torch.lerp(at.q, at.p, share)
    if at.greedy:
        v = peak(torch.lerp(at.q1, at.p1, share), prefer=v)
        return maximal_coupling(at, x, v)._replace(weight=w)
    # (v - q)+ = w (p - q)+, but for small w the difference v - q is only rounding noise.
    return maximal_coupling(at, x, v, gain=at.p - at.q)._replace(weight=w)


@rule(
    HEAD,
    summary="ensemble w p + (1 - w) q with a learned weight per token",
    source="arXiv:2604.07622",
    law=laws.static,  # with the head's weights
)
def diversed(at: Positions, x: Tensor, *, head: Head) -> Verdict:
    """Verify against the ensemble of `static` with a weight per position from a head.

    The head never sees x itself, so v is a valid conditional distribution.

    Source: DIVERSED, arXiv:2604.07622.
    """
    return static(at, x, weight=head(at))


def weight_of_each(weight: float | Tensor, at: Positions, x: Tensor) -> Tensor:
    """Return the weight at each position [K]."""
    return weight if isinstance(weight, torch.Tensor) else at.p.new_full(x.shape, weight)


def peak(scores: Tensor, prefer: Tensor) -> Tensor:
    """Return one-hot rows at the largest score [K, V]; ``prefer`` breaks ties."""
    best = scores == scores.amax(-1, keepdim=True)
    choice = (best * (1 + prefer)).argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, choice, 1.0)
