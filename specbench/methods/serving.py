"""What serving engines run: exact matching, and two ways in which they relax it.

None of these rules looks at q, so they suit drafts whose distribution is unknown; they accept less
than ``sd`` for the same bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.methods import laws
from specbench.methods.lazy import torch
from specbench.methods.method import Parameter, rule
from specbench.methods.verdict import Positions, Verdict, normalise, pick

if TYPE_CHECKING:
    from torch import Tensor


@rule(
    summary="accept a draft that a draw from the target repeats: exact, accepts less than sd",
    source="default of several serving engines",
    exact=True,
    law=laws.match,
)
def match(at: Positions, x: Tensor) -> Verdict:
    """Draw y from p and accept x where x = y, else emit y: emits p exactly.

    Accepts with p(x), where ``sd`` accepts with min(1, p/q): in the mean sum p q for drawn drafts,
    p(argmax q) for greedy ones.

    Args:
        at: the K positions.
        x: [K] drafted tokens.

    Source: Leviathan et al. 2023, arXiv:2211.17192, section 2.3, name it as the naive form; default
        of several engines at T > 0.
    """
    return _without(at, x, at.p)


@rule(
    Parameter(
        "single",
        0.5,
        "always accept where p is at least this",
        gt=0,
        le=1,
        grid=(0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1),
        sign="s=",
    ),
    Parameter(
        "accumulated",
        1.0,
        "elsewhere accept with p over this; 1 is match, smaller accepts more",
        gt=0,
        le=1,
        grid=(0.05, 0.1, 0.2, 0.5, 1),
        sign="a=",
    ),
    summary="match that keeps tokens the target finds likely: SGLang's acceptance thresholds",
    source="SGLang",
    law=laws.threshold,
)
def threshold(at: Positions, x: Tensor, *, single: float, accumulated: float) -> Verdict:
    """Accept x where p(x) >= single, elsewhere with min(1, p(x) / accumulated).

    A rejected x is replaced by a draw from p without x. With both thresholds 1 it is ``match``.

    Args:
        at: the K positions.
        x: [K] drafted tokens.
        single: threshold in (0, 1] above which a token is always accepted.
        accumulated: a in (0, 1]; smaller accepts more.

    Source: SGLang, ``speculative_accept_threshold_single`` and ``_acc``, for chains of drafts.
    """
    accept = (at.p / max(accumulated, torch.finfo(at.p.dtype).tiny)).clamp_max(1)
    return _without(at, x, torch.where(at.p >= single, 1, accept))


@rule(
    Parameter(
        "form",
        "margin",
        "what close means: p >= max p - margin, or p >= ratio max p",
        str,
        choices=("margin", "ratio"),
        sign="",
    ),
    Parameter(
        "margin",
        0.3,
        "p may be this much below max p",
        ge=0,
        le=1,
        grid=(0, 0.1, 0.2, 0.3, 0.6, 1),
        when=("form", "margin"),
        sign="",
    ),
    Parameter(
        "ratio",
        0.3,
        "p must be at least this share of max p",
        ge=0,
        le=1,
        grid=(0, 0.01, 0.03, 0.1, 0.3, 1),
        when=("form", "ratio"),
        sign="",
    ),
    Parameter(
        "keep", 10, "k: only the k likeliest are kept", int, ge=1, grid=(1, 2, 3, 5, 10), sign="k="
    ),
    Parameter(
        "replacement",
        "argmax",
        "of a rejected token: the target's likeliest, or a draw from p",
        str,
        choices=("argmax", "draw"),
        sign="",
    ),
    summary="keep a draft among the target's k likeliest whose p is close to the likeliest's",
    source="TensorRT-LLM",
    law=laws.relaxed,
)
def relaxed(
    at: Positions,
    x: Tensor,
    *,
    form: str,
    keep: int,
    replacement: str,
    margin: float = 0.0,
    ratio: float = 1.0,
) -> Verdict:
    """Accept x where it is among the k likeliest tokens and p1(x) is close to the likeliest's.

    Close is p1(x) >= max p1 - margin, or p1(x) >= ratio max p1. The rule ignores q(x), so
    the emitted distribution is neither p nor between p and q.

    Args:
        at: the K positions.
        x: [K] drafted tokens.
        form: ``margin`` or ``ratio``, what close means.
        keep: k >= 1; tokens as likely as the k-th count too.
        replacement: of a rejected token: ``argmax`` of p, or a ``draw`` from p.
        margin: see above, in [0, 1]; 0 accepts the likeliest token alone.
        ratio: see above, in [0, 1]; 1 accepts the likeliest token alone.

    Source: TensorRT-LLM, relaxed acceptance (``relaxed_topk``, ``relaxed_delta``), for the form
        with a margin, which replaces by argmax.
    """
    top = at.p1.amax(-1, keepdim=True)
    near = at.p1 >= (top - margin if form == "margin" else ratio * top)
    near &= at.p1 >= at.p1.topk(min(keep, at.p1.shape[-1]), -1).values[:, -1:]
    residual = at.p
    if replacement == "argmax":
        residual = torch.zeros_like(at.p).scatter_(-1, at.p.argmax(-1, keepdim=True), 1.0)
    accept = near.to(at.p)
    return Verdict(pick(accept, x), residual, expected=(at.q * accept).sum(-1))


def _without(at: Positions, x: Tensor, accept: Tensor) -> Verdict:
    """Accept with ``accept`` ``[K, V]``; replace x by a draw from p without x."""
    residual = at.p.scatter(-1, x.unsqueeze(-1), 0)
    return Verdict(pick(accept, x), normalise(residual, at.p), expected=(at.q * accept).sum(-1))
