"""Block verification: the drafts of a round are judged together, which keeps more of them."""

import torch
from torch import Tensor

from specbench.methods.verdict import Positions, Verdict, normalise, pick


def block(at: Positions, x: Tensor) -> Verdict:
    """Keep as long a part of the drafted block as p allows: emits p exactly, as `sd` does.

    With P_0 = 1 and P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)) the i-th draft may be the last one
    kept with probability

        h_i = S_i / (S_i + 1 - P_i),    S_i = sum_x (P_i p_{i+1}(x) - q_{i+1}(x))+,    h_N = P_N,

    and the largest i that passes its own draw is. So i drafts or more are kept with probability
    A_i = 1 - prod_{j >= i} (1 - h_j), which in the terms of a verdict is an acceptance of
    A_i / A_{i-1} at the i-th position, given that those before it were accepted. The token in the
    place of the first rejected one comes from norm((P_{i-1} p_i - q_i)+).

    `accept` depends on all drafts of the block, later ones too, so none of them may be left out of
    the judgement. `expected` is the acceptance at a position before it and the later ones are
    drawn, sum_x min(p_i(x), q_i(x) / P_{i-1}): never less than that of `sd`, and equal at the first
    position. At temperature 0 it is `sd`.

    Source: Sun et al. 2024, arXiv:2403.10444.
    """
    tiny = torch.finfo(at.p.dtype).tiny
    ratio = pick(at.p, x).log() - pick(at.q, x).clamp_min(tiny).log()
    # A product that is cut off at 1 counts from where the running product was largest.
    total = ratio.view(-1, at.n).cumsum(-1)
    kept = (total - total.clamp_min(0).cummax(-1).values).exp()  # P_1 to P_N
    one = torch.ones_like(kept[:, :1])
    before = torch.cat((one, kept[:, :-1]), -1)  # P_0 to P_{N-1}
    share = before.view(-1, 1)
    mass = (share * at.p - at.q).clamp_min(0)
    room = mass.sum(-1).view(-1, at.n)[:, 1:]  # S_1 to S_{N-1}
    out_of = room + 1 - kept[:, :-1]
    last = torch.cat((torch.where(out_of > 0, room / out_of, 1.0), kept[:, -1:]), -1)  # h
    reached = 1 - (1 - last).flip(-1).cumprod(-1).flip(-1)  # A_1 to A_N
    earlier = torch.cat((one, reached[:, :-1]), -1).clamp_min(tiny)
    return Verdict(
        accept=(reached / earlier).clamp_max(1).view(-1),
        residual=normalise(mass, fallback=at.p),
        expected=torch.minimum(at.p, at.q / share.clamp_min(tiny)).sum(-1),
    )
