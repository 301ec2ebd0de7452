"""Rules that verify against another distribution by how far target and draft are apart."""

from __future__ import annotations

from specbench.methods import laws
from specbench.methods.ensembles import peak
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

DISTANCE = Parameter(
    "distance", 0.05, "near is a divergence up to this, in nats; 0 is sd", ge=0, exact=0, sign="t="
)
CONTRAST = Parameter("contrast", 0.5, "b, the power of p / q; 0 is p alone", ge=0, sign="b=")
PLAUSIBLE = Parameter("plausible", 0.1, "a: only tokens with p >= a max p", gt=0, le=1, sign="a=")


@rule(
    DISTANCE,
    summary="the draft where it is near the target (Jensen-Shannon), strict elsewhere",
    source="arXiv:2502.20704",
    law=laws.fuzzy,
)
def fuzzy(at: Positions, x: Tensor, *, distance: float) -> Verdict:
    """Verify against v = q where JS(p, q) <= distance, and v = p elsewhere.

    At temperature 0 the divergence is that of p1 and q1. With `distance` 0 this is `sd`.

    Source: Fuzzy Speculative Decoding, arXiv:2502.20704; R-Fuzzy in arXiv:2607.08690.
    """
    p, q = (at.p1, at.q1) if at.greedy else (at.p, at.q)
    middle = torch.lerp(p, q, 0.5)
    apart = (torch.xlogy(p, p) + torch.xlogy(q, q)) / 2 - torch.xlogy(middle, middle)
    near = (apart.sum(-1, keepdim=True) <= distance) if distance else at.p.new_zeros(1).bool()
    return maximal_coupling(at, x, torch.where(near, at.q, at.p))


@rule(
    CONTRAST,
    PLAUSIBLE,
    summary="contrastive: softmax((1 + b) log p - b log q) on tokens with p >= a max p",
    source="arXiv:2311.08981",
    law=laws.contrastive,
)
def contrastive(at: Positions, x: Tensor, *, contrast: float, plausible: float) -> Verdict:
    """Verify against v, proportional to p (p / q)^b on the target's plausible tokens.

    A token that q lacks counts as one of `laws.SELDOM`. At temperature 0 emit the argmax of p1, q1.

    Source: Speculative Contrastive Decoding, arXiv:2311.08981; SCD in arXiv:2607.08690.
    """
    p, q = (at.p1, at.q1) if at.greedy else (at.p, at.q)
    scores = p.log() * (1 + contrast) - q.clamp_min(laws.SELDOM).log() * contrast
    scores = scores.masked_fill(p < plausible * p.amax(-1, keepdim=True), -torch.inf)
    v = peak(scores, prefer=at.p) if at.greedy else scores.softmax(-1)
    return maximal_coupling(at, x, v)
