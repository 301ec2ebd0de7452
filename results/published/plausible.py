"""An attempt: the ensemble of DIVERSED, cut to tokens that the target finds plausible."""

import torch
from torch import Tensor

from specbench.methods import Parameter, Positions, Verdict, maximal_coupling, normalise, rule
from specbench.methods.ensembles import Head
from specbench.methods.laws import Next, Split, coupled


def law(at: Next, gate: float, weight: Tensor) -> Split:
    """Return what `plausible` emits, by a head with weights ``[K, 1]``."""
    v = weight * at.p + (1 - weight) * at.q
    v = torch.where(at.p1 >= gate * at.p1.amax(-1, keepdim=True), v, 0)
    return coupled(v / v.sum(-1, keepdim=True), at.q)


@rule(Parameter("gate", 0.1, "of a token's p to the largest", ge=0, le=1), law=law)
def plausible(at: Positions, x: Tensor, *, head: Head, gate: float) -> Verdict:
    """Verify against w p + (1 - w) q, with w of a head, cut to tokens with p >= gate max p."""
    implausible = at.p1 < gate * at.p1.amax(-1, keepdim=True)
    w = head(at)
    v = torch.lerp(at.q, at.p, w[:, None]).masked_fill(implausible, 0)
    return maximal_coupling(at, x, normalise(v, fallback=at.p))._replace(weight=w)
