"""Rules that accept what the target finds likely enough, or raises up to a divergence."""

from __future__ import annotations

from specbench.methods import laws
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import (
    Positions,
    Verdict,
    entropy_of,
    likeliest_token,
    maximal_coupling,
    pick,
)


@rule(
    Parameter(
        "epsilon",
        0.09,
        "accept where p exceeds the smaller of epsilon and delta exp(-entropy of p)",
        ge=0,
        le=1,
        sign="ε=",
    ),
    Parameter("delta", 0.3, "as for epsilon; smaller accepts more", ge=0, le=1, sign="δ="),
    summary="typical acceptance: accept drafts likely under the target, else emit its argmax",
    source="arXiv:2401.10774",
    law=laws.typical,
)
def typical(at: Positions, x: Tensor, *, epsilon: float, delta: float) -> Verdict:
    """Accept x if p(x) > min(epsilon, delta exp(-H(p))), H the entropy; else emit argmax p.

    The rule ignores q(x), so the emitted distribution does not lie between p and q: tokens above
    the threshold have probability q, and all other draft mass goes to argmax p. No parameter makes
    the rule strict. At temperature 0, p is one-hot and only its argmax is accepted, so for epsilon
    or delta below 1 this is `sd`, as in Medusa's own code.

    Source: Medusa, Cai et al. 2024, arXiv:2401.10774, section 2.3.1.
    """
    likely = (delta * (-entropy_of(at.p)).exp()).clamp_max(epsilon)
    near = (at.p > likely[:, None]).to(at.p)
    best = likeliest_token(at.p)[:, None]
    choice = torch.zeros_like(at.p).scatter_(-1, best, 1.0)
    return Verdict(accept=pick(near, x), residual=choice, expected=(at.q * near).sum(-1))


@rule(
    Parameter(
        "divergence",
        0.1,
        "d; p is raised by sqrt(2 d p (1 - p)); 0 is sd",
        ge=0,
        exact=0,
        sign="d=",
    ),
    summary="raise p of the drafted token as far as a bound on divergence allows",
    source="arXiv:2604.04987",
    law=laws.cactus,
)
def cactus(at: Positions, x: Tensor, *, divergence: float) -> Verdict:
    """Verify against h, which is p with p(x) raised to g = min(1, p + sqrt(2 d p (1 - p))).

    The other tokens share the remaining mass: h(y) = p(y) (1 - g) / (1 - p(x)). Each drafted token
    has its own h, so the residual norm((h - q)+) depends on x, and the emitted distribution is a
    mixture over x. At temperature 0, p is one-hot and g = p, so this is `sd` for every d.

    Source: Hao and Mou 2026, arXiv:2604.04987.
    """
    spread = (at.p * (1 - at.p)).clamp_min(0)
    raised = (at.p + (2 * divergence * spread).sqrt()).clamp_max(1)
    left = (1 - pick(raised, x)) / (1 - pick(at.p, x)).clamp_min(torch.finfo(at.p.dtype).tiny)
    # Wherever x can be rejected, h - q is negative at x, and so is this expression.
    return maximal_coupling(at, x, raised, gain=left.unsqueeze(-1) * at.p - at.q)
