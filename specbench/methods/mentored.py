"""Mentored decoding: the fewest rejections within a divergence budget."""

from __future__ import annotations

import sys
from typing import NamedTuple

from specbench.methods import laws
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.strict import sd
from specbench.methods.verdict import Positions, Verdict, maximal_coupling

_PARTS, _ROUNDS = 64, 4  # of the search; 64^-4 of the rejection is float32 precision
_TINY = sys.float_info.min


@rule(
    Parameter(
        "budget",
        0.1,
        "largest KL divergence of the emitted distribution from p, in nats per token; 0 is sd",
        ge=0,
        exact=0,
        sign="D=",
    ),
    summary="the fewest rejections within a budget of divergence from the target",
    source="Tran-Thien 2023",
    law=laws.mentored,
)
def mentored(at: Positions, x: Tensor, *, budget: float) -> Verdict:
    """Emit clip(q, p/b, p/a), the distribution nearest to q with KL(p || pi) <= D.

    For 0 < a <= 1 <= b: accept with min(1, p / (a q)), else draw from norm((p/b - q)+), where
    sum (q - p/a)+ = sum (p/b - q)+. No rule with a divergence of at most D rejects less. Tokens
    that top-k or top-p removes from p are never accepted, whatever the budget. At temperature 0,
    where p is one-hot, this is `sd`.

    `budget` is D >= 0 in nats, at every position; 0 is `sd`. Rounding of the tensors is equivalent
    to a budget of about 1e-6.

    Source: Tran-Thien 2023, "An optimal lossy variant of speculative decoding".
    """
    if budget == 0 or at.greedy:
        return sd(at, x)
    # In float64: p/q and a may underflow in float32.
    p, q = at.p.double(), at.q.double()
    low, high = _clip(p, q, budget)
    return maximal_coupling(at, x, (p / low).to(at.p), gain=(p / high - q).to(at.p))


class _Row(NamedTuple):
    """Cumulative sums [K, 1 + V] over tokens sorted by rising p/q, starting with 0."""

    p: Tensor  # sum of p
    q: Tensor  # sum of q
    spent: Tensor  # sum of p log(p/q), without tokens that q excludes
    cut: Tensor  # [K, V] rejected mass sum (q - p/a)+ if a is this token's p/q
    raised: Tensor  # [K, V] minus the replacement mass sum (p/b - q)+ if b is this token's p/q


def _clip(p: Tensor, q: Tensor, budget: float) -> tuple[Tensor, Tensor]:
    """Return a and b [K, 1] for rows p and q [K, V]; all in float64.

    The rejection determines both. The divergence falls as the rejection rises from the draft mass
    that p excludes to TV(p, q). The smallest rejection within the budget is found by repeated
    subdivision, with many candidates at once; each candidate only looks up precomputed sums.
    """
    row = _sorted(p, q)
    low = q.masked_fill(p > 0, 0).sum(-1, keepdim=True)
    high = (q - p).clamp_min(0).sum(-1, keepdim=True)
    parts = torch.arange(_PARTS, device=p.device)
    for _ in range(_ROUNDS):
        step = (high - low) / _PARTS
        *_, divergence = _at(row, low + step * parts)
        over = (divergence > budget).sum(-1, keepdim=True)
        low, high = low + step * (over - 1).clamp_min(0), low + step * over
    a, b, _ = _at(row, high)
    return a, b


def _sorted(p: Tensor, q: Tensor) -> _Row:
    ratio, order = torch.where(q > 0, p / q, torch.inf).sort(-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    spent = torch.xlogy(p, ratio).masked_fill(ratio == torch.inf, 0)
    below_p, below_q, spent = p.cumsum(-1), q.cumsum(-1), spent.cumsum(-1)
    above_p, above_q = below_p[:, -1:] - below_p, below_q[:, -1:] - below_q
    floor = ratio.clamp_min(_TINY)
    cut, raised = below_q - below_p / floor, above_q - above_p / floor
    pad = torch.nn.functional.pad
    return _Row(pad(below_p, (1, 0)), pad(below_q, (1, 0)), pad(spent, (1, 0)), cut, raised)


def _at(row: _Row, rejection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a, b and KL(p || pi), each [K, M], for rejections [K, M]."""
    below = torch.searchsorted(row.cut, rejection, right=True)  # tokens with p/q < a
    above = torch.searchsorted(row.raised, -rejection)  # tokens with p/q <= b
    p, q, spent = row.p.gather(-1, below), row.q.gather(-1, below), row.spent.gather(-1, below)
    rest_p = row.p[:, -1:] - row.p.gather(-1, above)
    rest_q = row.q[:, -1:] - row.q.gather(-1, above)
    a = (p / (q - rejection).clamp_min(_TINY)).clamp(_TINY, 1)
    b = (rest_p / (rejection + rest_q).clamp_min(_TINY)).clamp(1, 1 / _TINY)
    between = row.spent.gather(-1, above) - spent
    return a, b, p * a.log() + between + rest_p * b.log()
