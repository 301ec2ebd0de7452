"""A verification rule to copy: the geometric mixture of target and draft."""

import torch
from torch import Tensor

from specbench.methods import Parameter, Positions, Verdict, maximal_coupling, normalise, rule
from specbench.methods.laws import Split, coupled, total


def law(at: Positions, share: float) -> Split:
    """Return what `geometric` emits: the mixture, or p where p and q share no token."""
    mass = at.p**share * at.q ** (1 - share)
    return coupled(torch.where(total(mass) > 0, mass / total(mass), at.p), at.q)


@rule(
    Parameter("share", 0.5, "of the target; 1 is sd", gt=0, le=1, grid=(0.2, 0.4, 0.6, 0.8)),
    law=law,
)
def geometric(at: Positions, x: Tensor, *, share: float) -> Verdict:
    """Verify against the geometric mixture of p and q, proportional to p^s q^(1 - s)."""
    v = normalise(at.p.pow(share) * at.q.pow(1 - share), fallback=at.p)
    return maximal_coupling(at, x, v)
