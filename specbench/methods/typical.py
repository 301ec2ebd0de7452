"""Typical acceptance: what the target finds likely enough may stay."""

import torch
from torch import Tensor

from specbench.methods.verdict import Positions, Verdict, pick


def typical(at: Positions, x: Tensor, *, epsilon: float, delta: float) -> Verdict:
    """Accept x where p(x) > min(epsilon, delta exp(-H(p))), H the entropy; else argmax p.

    The draft is not asked how it came to x, so what is emitted is neither p nor between p and q:
    tokens above the threshold come as often as the draft says, all others become argmax p. There
    is no strict end. At temperature 0, p is one-hot and only its argmax passes: it is `sd` there,
    as in Medusa's own code, for any epsilon or delta below 1.

    Args:
        at: the K positions.
        x: [K] drafted tokens.
        epsilon: the threshold where the target is sure.
        delta: the threshold in units of exp(-H), the share of each of exp(H) equal tokens.

    Source: Medusa, Cai et al. 2024, arXiv:2401.10774, section 2.3.1.
    """
    entropy = -torch.xlogy(at.p, at.p).sum(-1, keepdim=True)
    near = (at.p > (delta * (-entropy).exp()).clamp_max(epsilon)).to(at.p)
    likeliest = torch.zeros_like(at.p).scatter_(-1, at.p.argmax(-1, keepdim=True), 1.0)
    return Verdict(accept=pick(near, x), residual=likeliest, expected=(at.q * near).sum(-1))
