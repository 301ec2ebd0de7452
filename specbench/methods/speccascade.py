"""Speculative cascades: a deferral rule decides where to trust the draft.

The rule defines the set A of tokens for which the draft is trusted. The cascade's distribution

    pi(v) = q(v) [v in A] + eta p(v),    eta = 1 - q(A),

is verified losslessly. The rules chow, diff and opt decide for a whole position: A contains all
tokens (pi = q) or none (pi = p). Confidences are temperature-1 probabilities; pi and the distance
in opt use the processed distributions.

Source: Narasimhan et al. 2024, arXiv:2405.19261.
"""

from __future__ import annotations

from collections.abc import Callable

from specbench.methods import laws
from specbench.methods.lazy import Tensor
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

# Default, bounds and help of alpha for each deferral rule. The defaults lie between strict
# and draft-only; they are not tuned.
_ALPHA: dict[str, tuple[float, float | None, float | None, str]] = {
    "token-v3": (0.5, None, 1, "trust tokens with p >= (1 - alpha) max p; below 0 strict"),
    "token-v2": (0.2, -1, 1, "trust tokens with p >= max p - alpha; -1 strict"),
    "token-v1": (0.2, -1, 1, "trust tokens with q >= max p - alpha; -1 strict"),
    "opt": (0.5, None, None, "trust the draft where max q >= max p - alpha TV(p, q)"),
    "diff": (0.2, -1, 1, "trust the draft where max q >= max p - alpha; -1 strict"),
    "chow": (0.5, 0, 1, "trust the draft where max q >= 1 - alpha; 0 only where certain"),
}


@rule(
    Parameter(
        "rule",
        "token-v3",
        "deferral rule: where the draft is trusted",
        str,
        choices=tuple(sorted(_ALPHA)),
        sign="",
    ),
    *(
        Parameter("alpha", default, text, ge=low, le=high, when=("rule", name), sign="α=")
        for name, (default, low, high, text) in _ALPHA.items()
    ),
    summary="speculative cascade: a deferral rule mixes draft and target",
    source="arXiv:2405.19261",
    law=laws.speccascade,
)
def speccascade(at: Positions, x: Tensor, *, rule: str, alpha: float) -> Verdict:
    """Verify losslessly against the cascade pi of a deferral rule.

    `rule` is a key of `DEFERRAL_RULES`; a larger `alpha` trusts the draft more.
    """
    deferred = at.q.masked_fill(DEFERRAL_RULES[rule](at, alpha), 0)
    share = deferred.sum(-1, keepdim=True) * at.p
    # pi - q = share - deferred; computed without q, it stays precise where eta is small.
    return maximal_coupling(at, x, at.q - deferred + share, gain=share - deferred)


def _top(rows: Tensor) -> Tensor:
    """Return the largest probability of each row, [K, 1]."""
    return rows.amax(-1, keepdim=True)


DEFERRAL_RULES: dict[str, Callable[[Positions, float], Tensor]] = {
    "chow": lambda at, alpha: _top(at.q1) >= 1 - alpha,
    "diff": lambda at, alpha: _top(at.q1) >= _top(at.p1) - alpha,
    "opt": lambda at, alpha: (
        _top(at.q1) >= _top(at.p1) - alpha * (at.p - at.q).clamp_min(0).sum(-1, keepdim=True)
    ),
    "token-v1": lambda at, alpha: at.q1 >= _top(at.p1) - alpha,
    "token-v2": lambda at, alpha: at.p1 >= _top(at.p1) - alpha,
    # p1 >= (1 - alpha) max p1, written so that even a tiny negative alpha drops the argmax.
    "token-v3": lambda at, alpha: at.p1 - _top(at.p1) >= -alpha * _top(at.p1),
}
"""Deferral rules by name: the trusted set A as a mask, [K, V], or [K, 1] for a whole position."""
