"""Rules that verify against another distribution by how far target and draft are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.methods import laws
from specbench.methods.ensembles import peak
from specbench.methods.lazy import torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

if TYPE_CHECKING:
    from torch import Tensor


@rule(
    Parameter(
        "distance",
        0.05,
        "take the draft where the Jensen-Shannon divergence of p and q, in nats, is at most this; "
        "0 is sd, 0.7 the draft alone",
        ge=0,
        le=1,
        sign="t=",
    ),
    summary="the draft where it is near the target (Jensen-Shannon), strict elsewhere",
    source="arXiv:2502.20704",
    law=laws.fuzzy,
)
def fuzzy(at: Positions, x: Tensor, *, distance: float) -> Verdict:
    """Verify against v = q where JS(p, q) <= distance, and v = p elsewhere.

    At temperature 0 the divergence is that of p1 and q1, and the token emitted the argmax of one.
    With `distance` 0 nothing is near, so this is `sd`.

    Source: Fuzzy Speculative Decoding, arXiv:2502.20704; R-Fuzzy in arXiv:2607.08690.
    """
    p, q = (at.p1, at.q1) if at.greedy else (at.p, at.q)
    middle = torch.lerp(p, q, 0.5)
    apart = (torch.xlogy(p, p) + torch.xlogy(q, q)) / 2 - torch.xlogy(middle, middle)
    near = (apart.sum(-1, keepdim=True) <= distance) if distance else at.p.new_zeros(1).bool()
    return maximal_coupling(at, x, torch.where(near, at.q, at.p))


@rule(
    Parameter(
        "contrast",
        0.5,
        "b, by which the draft's preferences are subtracted; 0 is cut p",
        ge=0,
        sign="b=",
    ),
    Parameter(
        "plausible",
        0.1,
        "a: only tokens with p >= a max p",
        gt=0,
        le=1,
        sign="a=",
    ),
    summary="contrastive: softmax((1 + b) log p - b log q) on tokens with p >= a max p",
    source="arXiv:2311.08981",
    law=laws.contrastive,
)
def contrastive(at: Positions, x: Tensor, *, contrast: float, plausible: float) -> Verdict:
    """Verify against the target moved away from the draft, on the target's plausible tokens.

    v is proportional to p (p / q)^b where p >= a max p; a token that q lacks counts as one that q
    finds `SELDOM`. At temperature 0 the token emitted is the argmax of p1 (p1 / q1)^b there.

    Source: Speculative Contrastive Decoding, Yuan et al., arXiv:2311.08981, equations 2 to 4; SCD
        in arXiv:2607.08690.
    """
    p, q = (at.p1, at.q1) if at.greedy else (at.p, at.q)
    of_draft = q.clamp_min(laws.SELDOM).log()
    scores = torch.sub((1 + contrast) * p.log(), of_draft, alpha=contrast)
    scores = scores.masked_fill(p < plausible * p.amax(-1, keepdim=True), -torch.inf)
    v = peak(scores, prefer=at.p) if at.greedy else scores.softmax(-1)
    return maximal_coupling(at, x, v)
