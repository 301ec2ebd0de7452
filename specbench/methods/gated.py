"""Ensembles within the target's plausible set, strict verification outside."""

from __future__ import annotations

from specbench.methods import laws
from specbench.methods.ensembles import WEIGHT, peak, weight_of_each
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

GATE = Parameter(
    "gate",
    0.1,
    "the target's plausible set: tokens with p >= gate max p; 0 is every token, above 1 is sd",
    ge=0,
    sign="g=",
)


@rule(
    GATE,
    WEIGHT,
    summary="static in the target's plausible set, tokens with p >= gate max p; strict outside",
    source="this project",
    law=laws.gated,
)
def gated(at: Positions, x: Tensor, *, gate: float, weight: float | Tensor) -> Verdict:
    """Verify as `static` within the target's plausible set, and as `sd` outside.

    The plausible set is A = {y: p1(y) >= gate max p1}. Accepts with min(1, v/q), where v is
    w p + (1 - w) q on A and p elsewhere, else draws from norm((p - q)+). Since v does not sum to 1,
    the emitted distribution is

        pi(y) = v(y)                                 where q > p,
        pi(y) = q(y) + (1 - s / TV(p, q)) (p - q)(y) elsewhere,  s = (1 - w) sum_A (q - p)+.

    Tokens with q > p exceed p only within A; the tokens with q < p lose that mass. pi lies between
    p and q at every token, and the coupling is maximal, so rejection + bias = TV(p, q), as for
    `static`: the bias is s and the rejection TV(p, q) - s.

    At temperature 0 the emitted token is the argmax of w p1 + (1 - w) q1 within A. With `gate` 0, A
    contains all tokens and this is `static`; above 1, A is empty and this is `sd`.

    Source: specbench; motivated by studies in which lossy rules lose quality through tokens outside
        the target's plausible set.
    """
    w = weight_of_each(weight, at, x)
    share = w.unsqueeze(-1)
    plausible = at.p1 >= gate * at.p1.amax(-1, keepdim=True)
    v = torch.where(plausible, torch.lerp(at.q, at.p, share), at.p)
    if at.greedy:
        v = peak(torch.lerp(at.q1, at.p1, share).masked_fill(~plausible, -1), prefer=v)
        return maximal_coupling(at, x, v)._replace(weight=w)
    return maximal_coupling(at, x, v, gain=at.p - at.q)._replace(weight=w)
