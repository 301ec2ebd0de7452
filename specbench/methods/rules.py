"""Short verification rules; longer ones have their own modules.

A rule judges a drafted token `x` [K] at each of K positions.

At temperature 0 `p` and `q` are one-hot, so rules that mix or compare probabilities use `p1` and
`q1` there. Mixing one-hot vectors would be lossless for every weight above one half.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specbench.methods.verdict import Positions, Verdict, maximal_coupling, pick

Head = Callable[[Positions], Tensor]
"""`head(at) -> w [K]`, the weight on the target in [0, 1] at K positions."""


def sd(at: Positions, x: Tensor) -> Verdict:
    """Strict speculative decoding: emits p exactly.

    Source: Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
    """
    return maximal_coupling(at, x, at.p)


def lossy(at: Positions, x: Tensor, *, lenience: float) -> Verdict:
    """Accept with min(1, p / (l q)), and replace as `sd` does, from norm((p - q)+).

    At temperature 0, accept x if p1(x) >= l max p1; the "<=" in the paper is a misprint.

    `lenience` is l in (0, 1]; 1 is `sd`, smaller accepts more.

    Source: Leviathan et al. 2023, arXiv:2211.17192, appendix A.5.
    """
    # A lenience that underflows in the tensors' dtype would divide 0 by 0.
    floor = max(lenience, torch.finfo(at.p.dtype).tiny)
    # With l = 1 the one-hot p below decides as sd does, even if two tokens share max p1.
    if at.greedy and lenience < 1:
        near = (at.p1 >= floor * at.p1.amax(-1, keepdim=True)).to(at.p)
        return Verdict(accept=pick(near, x), residual=at.p, expected=(at.q * near).sum(-1))
    return maximal_coupling(at, x, at.p / floor, gain=at.p - at.q)


def static(at: Positions, x: Tensor, *, weight: float | Tensor) -> Verdict:
    """Verify against the ensemble v = w p + (1 - w) q.

    At temperature 0 the token emitted is argmax(w p1 + (1 - w) q1).

    `weight` is w in [0, 1] on the target, one number or one per position [K]; 1 is `sd`, 0 accepts
    every draft.

    Source: DIVERSED, arXiv:2604.07622, the static ensemble.
    """
    w = _each(weight, at, x)
    share = w.unsqueeze(-1)
    v = torch.lerp(at.q, at.p, share)
    if at.greedy:
        v = _peak(torch.lerp(at.q1, at.p1, share), prefer=v)
        return maximal_coupling(at, x, v)._replace(weight=w)
    # (v - q)+ = w (p - q)+, but for small w the difference v - q is only rounding noise.
    return maximal_coupling(at, x, v, gain=at.p - at.q)._replace(weight=w)


def diversed(at: Positions, x: Tensor, *, head: Head) -> Verdict:
    """Verify against the ensemble of `static` with a weight per position from a head.

    The head never sees x itself, so v is a valid conditional distribution.

    Source: DIVERSED, arXiv:2604.07622.
    """
    return static(at, x, weight=head(at))


def sharpened(
    at: Positions, x: Tensor, *, target_temperature: float, target_min_p: float
) -> Verdict:
    """Verify strictly against a sharpened target; emits that target exactly.

    This is the control for rules that implicitly lower the temperature or truncate the tail: this
    rule has the same gain in quality from sharpening. The bonus token comes from p, as for all
    rules.

    `target_temperature` is t in (0, 1]: the target is norm(p^(1/t)), that is, p at t times its
    temperature. `target_min_p` is m in [0, 1]: tokens with less than m times the maximum of the
    sharpened target are dropped.

    Source: specbench; min-p is from Nguyen et al. 2024, arXiv:2407.01082.
    """
    # Relative to the maximum, so that a high power does not underflow for all tokens.
    p = (at.p / at.p.amax(-1, keepdim=True)).pow(1 / target_temperature)
    p = torch.where(p >= target_min_p, p, 0)
    return maximal_coupling(at, x, p / p.sum(-1, keepdim=True))


def cooled(at: Positions, x: Tensor, *, cooled_weight: float) -> Verdict:
    """Verify as `static`; p and q are those of both models at a lower temperature or truncated.

    This is the control for rules that implicitly sharpen what both models say. With a weight of 1
    it is `sd` at that temperature, and emits what the target alone would emit there.

    Source: specbench.
    """
    return static(at, x, weight=cooled_weight)


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
    w = _each(weight, at, x)
    share = w.unsqueeze(-1)
    plausible = at.p1 >= gate * at.p1.amax(-1, keepdim=True)
    v = torch.where(plausible, torch.lerp(at.q, at.p, share), at.p)
    if at.greedy:
        v = _peak(torch.lerp(at.q1, at.p1, share).masked_fill(~plausible, -1), prefer=v)
        return maximal_coupling(at, x, v)._replace(weight=w)
    return maximal_coupling(at, x, v, gain=at.p - at.q)._replace(weight=w)


def gated_diversed(at: Positions, x: Tensor, *, gate: float, head: Head) -> Verdict:
    """Verify as `diversed` within the target's plausible set, and as `sd` outside; see `gated`."""
    return gated(at, x, gate=gate, weight=head(at))


def typical(at: Positions, x: Tensor, *, epsilon: float, delta: float) -> Verdict:
    """Accept x if p(x) > min(epsilon, delta exp(-H(p))), H the entropy; else emit argmax p.

    The rule ignores q(x), so the emitted distribution does not lie between p and q: tokens above
    the threshold have probability q, and all other draft mass goes to argmax p. No parameter makes
    the rule strict. At temperature 0, p is one-hot and only its argmax is accepted, so for epsilon
    or delta below 1 this is `sd`, as in Medusa's own code.

    `epsilon` is the upper limit of the threshold, which applies where the target is certain.
    `delta` is the threshold in units of exp(-H), the probability of each of exp(H) equal tokens.

    Source: Medusa, Cai et al. 2024, arXiv:2401.10774, section 2.3.1.
    """
    entropy = -torch.xlogy(at.p, at.p).sum(-1, keepdim=True)
    near = (at.p > (delta * (-entropy).exp()).clamp_max(epsilon)).to(at.p)
    likeliest = torch.zeros_like(at.p).scatter_(-1, at.p.argmax(-1, keepdim=True), 1.0)
    return Verdict(accept=pick(near, x), residual=likeliest, expected=(at.q * near).sum(-1))


def cactus(at: Positions, x: Tensor, *, divergence: float) -> Verdict:
    """Verify against h, which is p with p(x) raised to g = min(1, p + sqrt(2 d p (1 - p))).

    The other tokens share the remaining mass: h(y) = p(y) (1 - g) / (1 - p(x)). Each drafted token
    has its own h, so the residual norm((h - q)+) depends on x, and the emitted distribution is a
    mixture over x. At temperature 0, p is one-hot and g = p, so this is `sd` for every d.

    `divergence` is d >= 0, approximately the KL divergence of h from p; 0 is `sd`.

    Source: Hao and Mou 2026, arXiv:2604.04987.
    """
    spread = (at.p * (1 - at.p)).clamp_min(0)
    raised = (at.p + (2 * divergence * spread).sqrt()).clamp_max(1)
    left = (1 - pick(raised, x)) / (1 - pick(at.p, x)).clamp_min(torch.finfo(at.p.dtype).tiny)
    # Wherever x can be rejected, h - q is negative at x, and so is this expression.
    return maximal_coupling(at, x, raised, gain=left.unsqueeze(-1) * at.p - at.q)


def _each(weight: float | Tensor, at: Positions, x: Tensor) -> Tensor:
    """Return the weight at each position [K]."""
    return weight if isinstance(weight, Tensor) else at.p.new_full(x.shape, weight)


def _peak(scores: Tensor, prefer: Tensor) -> Tensor:
    """Return one-hot rows at the largest score [K, V]; ``prefer`` breaks ties."""
    best = scores == scores.amax(-1, keepdim=True)
    choice = (best * (1 + prefer)).argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, choice, 1.0)
