"""Verification rules to copy: a geometric mixture, and a weight that decays along the round."""

import torch
from torch import Tensor

from specbench.methods import Parameter, Positions, Verdict, maximal_coupling, normalise, rule
from specbench.methods.laws import Next, Split, coupled, total


def law(at: Next, share: float) -> Split:
    """Return what `geometric` emits: the mixture, or p where p and q share no token."""
    mass = at.p**share * at.q ** (1 - share)
    return coupled(torch.where(total(mass) > 0, mass / total(mass), at.p), at.q)


@rule(Parameter("share", 0.5, "of the target; 1 is sd", gt=0, le=1), law=law)
def geometric(at: Positions, x: Tensor, *, share: float) -> Verdict:
    """Verify against the geometric mixture of p and q, proportional to p^s q^(1 - s)."""
    v = normalise(at.p.pow(share) * at.q.pow(1 - share), fallback=at.p)
    return maximal_coupling(at, x, v)


def decaying_law(at: Next, decay: float) -> Split:
    """Return what `decaying` emits: the mixture with w = decay^i at the i-th draft, from 0."""
    w = decay ** at.position.to(at.p)[:, None]
    return coupled(w * at.p + (1 - w) * at.q, at.q)


@rule(Parameter("decay", 0.8, "of w per draft; 1 is sd", gt=0, le=1), law=decaying_law)
def decaying(at: Positions, x: Tensor, *, decay: float) -> Verdict:
    """Verify against w p + (1 - w) q, strictly at first and less so along the round."""
    w = decay ** at.position.to(at.p)[:, None]
    return maximal_coupling(at, x, torch.lerp(at.q, at.p, w))
