"""Speculative decoding, strict and lenient.

At temperature 0 `p` and `q` are one-hot, so rules that mix or compare probabilities use `p1` and
`q1` there. A mixture of the one-hot vectors would have the target's argmax for every weight above
one half, so such a rule would then be `sd`.
"""

from __future__ import annotations

from specbench.methods import laws
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling, pick


@rule(
    summary="speculative decoding: the target's distribution, exactly",
    source="arXiv:2211.17192, arXiv:2302.01318",
    exact=True,
    law=laws.sd,
)
def sd(at: Positions, x: Tensor) -> Verdict:
    """Strict speculative decoding: emits p exactly.

    Source: Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
    """
    return maximal_coupling(at, x, at.p)


@rule(
    Parameter("lenience", 0.5, "l; 1 is sd, smaller accepts more", gt=0, le=1, exact=1, sign="l="),
    summary="speculative decoding with lenience: accept with min(1, p / (l q))",
    source="arXiv:2211.17192, appendix A.5",
    law=laws.lossy,
)
def lossy(at: Positions, x: Tensor, *, lenience: float) -> Verdict:
    """Accept with min(1, p / (l q)), and replace as `sd` does, from norm((p - q)+).

    At temperature 0, accept x if p1(x) >= l max p1; the "<=" in the paper is a misprint.

    Source: Leviathan et al. 2023, arXiv:2211.17192, appendix A.5.
    """
    # A lenience that underflows in the tensors' dtype would divide 0 by 0.
    lenience = max(lenience, torch.finfo(at.p.dtype).tiny)
    # With l = 1 the one-hot p below decides as sd does, even if two tokens share max p1.
    if at.greedy and lenience < 1:
        near = (at.p1 >= lenience * at.p1.amax(-1, keepdim=True)).to(at.p)
        return Verdict(accept=pick(near, x), residual=at.p, expected=(at.q * near).sum(-1))
    return maximal_coupling(at, x, at.p / lenience, gain=at.p - at.q)
