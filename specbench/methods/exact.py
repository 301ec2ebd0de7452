"""Exact rules besides `sd`: drafts of adaptive length, and judging a round's drafts jointly."""

from __future__ import annotations

from specbench.methods import laws
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import (
    Positions,
    Verdict,
    given_earlier,
    maximal_coupling,
    normalise,
    pick,
)


@rule(
    Parameter(
        "cost",
        0.1,
        "time of a draft step / time of a target pass, see `specbench bench`; "
        "--draft-length is the largest number of drafts",
        gt=0,
        sign="c=",
    ),
    summary="sd that stops drafting where another draft would not pay off; exact",
    source="arXiv:2211.17192, section 3.5",
    exact=True,
    control="adaptive",
    law=laws.sd,
)
def sd_adaptive(at: Positions, x: Tensor) -> Verdict:
    """Verify as `sd`; the control decides how many tokens are drafted."""
    return maximal_coupling(at, x, at.p)


@rule(
    summary="block verification: sd judging all drafts of a round together; exact, accepts more",
    source="arXiv:2403.10444",
    exact=True,
    joint=True,
    law=laws.sd,
)
def block(at: Positions, x: Tensor) -> Verdict:
    """Accept the longest part of the drafted block that p allows; emits p exactly, as `sd` does.

    Let P_0 = 1 and P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)). The i-th draft passes with
    probability

        h_i = S_i / (S_i + 1 - P_i),    S_i = sum_x (P_i p_{i+1}(x) - q_{i+1}(x))+,    h_N = P_N,

    and the drafts up to the largest passing i are accepted. At least i drafts are accepted with
    probability A_i = 1 - prod_{j >= i} (1 - h_j). A verdict states this as an acceptance
    probability of A_i / A_{i-1} at the i-th position, given that all drafts before it were
    accepted. The first rejected token is replaced by a draw from norm((P_{i-1} p_i - q_i)+).

    `accept` depends on all drafts of the block, including later ones, so all of them must be
    judged. Positions after the end of a shorter block have a q of 0 everywhere. `expected` is the
    acceptance probability before the draft and later ones are drawn, sum_x min(p_i(x), q_i(x) /
    P_{i-1}): that of `sd` at the first position, and never less later. At temperature 0 it is `sd`.

    Source: Sun et al. 2024, arXiv:2403.10444.
    """
    tiny = torch.finfo(at.p.dtype).tiny
    ratio = pick(at.p, x).log() - pick(at.q, x).clamp_min(tiny).log()
    ratio = torch.where(at.drafted, ratio, -torch.inf)  # P is 0 after the end: nothing passes
    # A product clipped at 1 equals the running product relative to its largest value so far.
    total = at.by_round(ratio).cumsum(-1)
    probability = (total - total.clamp_min(0).cummax(-1).values).exp()  # P_1 to P_N
    ones = torch.ones_like(probability[:, :1])
    before = torch.cat((ones, probability[:, :-1]), -1)  # P_0 to P_{N-1}
    share = before.view(-1, 1)
    mass = (share * at.p - at.q).clamp_min(0)
    room = at.by_round(mass.sum(-1))[:, 1:]  # S_1 to S_{N-1}
    out_of = room + 1 - probability[:, :-1]
    last = torch.cat((torch.where(out_of > 0, room / out_of, 1.0), probability[:, -1:]), -1)  # h
    reached = 1 - (1 - last).flip(-1).cumprod(-1).flip(-1)  # A_1 to A_N
    return Verdict(
        accept=given_earlier(reached),
        residual=normalise(mass, fallback=at.p),
        expected=torch.minimum(at.p, at.q / share.clamp_min(tiny)).sum(-1),
    )
