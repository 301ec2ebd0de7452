"""Cactus: the target's probability of the drafted token is raised as far as a bound allows."""

import torch
from torch import Tensor

from specbench.methods.verdict import Positions, Verdict, couple, pick


def cactus(at: Positions, x: Tensor, *, divergence: float) -> Verdict:
    """Verify against h, which is p with p(x) raised to g = min(1, p + sqrt(2 d p (1 - p))).

    The other tokens share what is left: h(y) = p(y) (1 - g) / (1 - p(x)). Each drafted token has an
    h of its own, so the residual norm((h - q)+) depends on x, and what is emitted is a mixture over
    x. At temperature 0, p is one-hot and g = p: it is `sd` there for every d.

    Args:
        at: the K positions.
        x: [K] drafted tokens.
        divergence: d >= 0, about the KL divergence of h from p; 0 is `sd`.

    Source: Hao and Mou 2026, arXiv:2604.04987.
    """
    spread = (at.p * (1 - at.p)).clamp_min(0)
    raised = (at.p + (2 * divergence * spread).sqrt()).clamp_max(1)
    left = (1 - pick(raised, x)) / (1 - pick(at.p, x)).clamp_min(torch.finfo(at.p.dtype).tiny)
    # At x itself h - q is negative wherever x can be rejected, and so is this.
    return couple(at, x, raised, gain=left.unsqueeze(-1) * at.p - at.q)
