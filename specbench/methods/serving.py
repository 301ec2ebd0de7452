"""What serving engines run or propose: exact matching, and ways in which they relax verification.

``match``, ``threshold`` and ``relaxed`` do not look at q, so they suit drafts whose distribution is
unknown; they accept less than ``sd`` for the same bias.
"""

from __future__ import annotations

from collections.abc import Sequence

from specbench.methods import laws
from specbench.methods.lazy import Tensor, torch
from specbench.methods.method import Parameter, Rates, rule
from specbench.methods.verdict import (
    Positions,
    Rule,
    Verdict,
    entropy_of,
    given_earlier,
    maximal_coupling,
    normalise,
    pick,
)


@rule(
    summary="accept a draft that a draw from the target repeats: exact, accepts less than sd",
    source="default of several serving engines",
    exact=True,
    law=laws.match,
)
def match(at: Positions, x: Tensor) -> Verdict:
    """Draw y from p and accept x where x = y, else emit y: emits p exactly.

    Accepts with p(x), where ``sd`` accepts with min(1, p/q): in the mean sum p q for drawn drafts,
    p(argmax q) for greedy ones. Leviathan et al. 2023, arXiv:2211.17192, call it naive.
    """
    return _without(at, x, at.p)


@rule(
    Parameter("single", 0.5, "accept all with p of at least this", gt=0, le=1, sign="s="),
    Parameter("accumulated", 1.0, "else accept p / a; 1 is match", gt=0, le=1, sign="a="),
    summary="match that keeps tokens the target finds likely: SGLang's acceptance thresholds",
    source="SGLang",
    law=laws.threshold,
)
def threshold(at: Positions, x: Tensor, *, single: float, accumulated: float) -> Verdict:
    """Accept x where p(x) >= single, elsewhere with min(1, p(x) / accumulated).

    A rejected x is replaced by a draw from p without x. With both thresholds 1 it is ``match``.

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
        when=("form", "margin"),
        sign="",
    ),
    Parameter(
        "ratio",
        0.3,
        "p must be at least this share of max p",
        ge=0,
        le=1,
        when=("form", "ratio"),
        sign="",
    ),
    Parameter("keep", 10, "k: only the k likeliest are kept", int, ge=1, sign="k="),
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
    the emitted distribution is neither p nor between p and q. Tokens as likely as the k-th count
    too.

    Source: TensorRT-LLM, relaxed acceptance, for the form with a margin and argmax.
    """
    top = at.p1.amax(-1, keepdim=True)
    near = at.p1 >= (top - margin if form == "margin" else ratio * top)
    near &= at.p1 >= at.p1.topk(min(keep, at.p1.shape[-1]), -1).values[:, -1:]
    residual = at.p
    if replacement == "argmax":
        residual = torch.zeros_like(at.p).scatter_(-1, at.p.argmax(-1, keepdim=True), 1.0)
    accept = near.to(at.p)
    return Verdict(pick(accept, x), residual, expected=(at.q * accept).sum(-1))


@rule(
    Parameter("theta", 0.9, "least share of the first logit", ge=0, le=1, sign="θ="),
    summary="keep the target's likeliest token, and its second if its logit is close to the first",
    source="arXiv:2601.15498",
    law=laws.mars,
)
def mars(at: Positions, x: Tensor, *, theta: float) -> Verdict:
    """Accept the target's likeliest token, and its second if z2 > theta z1; replace as `sd` does.

    z1 and z2 are the largest logits before any processing. Their ratio, unlike probabilities,
    depends on what is added to all logits, so the rule keeps only the first where z1 <= 0. Tokens
    that are as likely as a kept one are kept too.

    Source: MARS, arXiv:2601.15498.
    """
    assert at.top is not None, "mars reads the target's logits"
    top = at.top[:, None]
    logits = top + (at.p1 / at.p1.amax(-1, keepdim=True)).log()
    second = at.p1 >= at.p1.topk(2, -1).values[:, 1:]
    near = second & (logits > theta * top) & (top > 0) | (at.p1 == at.p1.amax(-1, keepdim=True))
    accept = near.to(at.p)
    strict = maximal_coupling(at, x, at.p)
    return strict._replace(accept=pick(accept, x), expected=(at.q * accept).sum(-1))


@rule(
    Parameter("strength", 0.4, "s: lenience exp(-s H)", ge=0, le=99, sign="s="),
    Parameter("cap", 0.95, "largest lenience", gt=0, le=1),
    summary="lossy that is more lenient where the target is unsure: accept with min(1, p / (t q))",
    source="vLLM Ascend",
    law=laws.entropy_verify,
)
def entropy_verify(at: Positions, x: Tensor, *, strength: float, cap: float) -> Verdict:
    """Verify as `lossy` with lenience t = min(exp(-s H), cap), H the entropy of p1 in nats.

    The cap makes it lossy also where the target is sure. At temperature 0 it is `sd`.

    Source: vLLM Ascend, entropy verification (0.4 and 0.95).
    """
    if at.greedy:
        return maximal_coupling(at, x, at.p)
    tiny = torch.finfo(at.p.dtype).tiny
    lenience = (-strength * entropy_of(at.p1)).exp().clamp(tiny, cap)
    return maximal_coupling(at, x, at.p / lenience[:, None], gain=at.p - at.q)


@rule(
    Parameter("tolerance", 0.3, "t; 0 is sd", ge=0, le=99, exact=0, sign="t="),
    summary="sd that accepts more where the target's likeliest token is unlikely",
    source="vLLM Ascend, a vendor's patch",
    law=laws.ears,
)
def ears(at: Positions, x: Tensor, *, tolerance: float) -> Verdict:
    """Accept with min(1, p / q + t (1 - max p)), and replace as `sd` does; at T = 0 it is `sd`.

    Source: EARS, proposed for vLLM Ascend; vendors set t from 0.3 to 0.5.
    """
    raised = at.p + tolerance * (1 - at.p.amax(-1, keepdim=True)) * at.q
    return maximal_coupling(at, x, raised, gain=at.p - at.q)


@rule(
    Parameter("window", 6, "W: next drafts, which must pass", int, ge=1, sign="W="),
    Parameter("bound", None, "least drafts behind it; default W", int, ge=1, sign="B="),
    Parameter("entropy", 0.3, "least entropy of p's top 3, nats", ge=0, sign="H="),
    summary="sd that keeps a rejected draft where the target is unsure, if the next W pass",
    source="FLy, vLLM 0.33",
    joint=True,
)
def fly(
    at: Positions, x: Tensor, *, window: int, entropy: float, bound: int | None = None
) -> Verdict:
    """Judge each draft as `sd`; defer a rejection, and drop it if the next W drafts all pass.

    A rejection can be deferred where p(x) > 0, `bound` drafts or more follow, and h >= `entropy`;
    h = -sum p log p over the three likeliest tokens, not normalised. It is replaced as in `sd`. So
    the draft at i is lost with probability c_i (1 - a_i) (1 - d_i): a_i is that of `sd`, c_i the
    probability that no window is open there, and d_i that the draft is deferred and its window
    passes. Deferral at i moves mass from c_i to c_{i+W+1}. `expected` is `accept`: what it would be
    before x is drawn depends on drafts that were not made. At temperature 0, h is that of p1.

    Source: FLy of AMD, in vLLM 0.33 (#53987); there W = min(6, N - 1), with as many drafts to
    follow, and 0.3 nats. The authors' code has W = 5 and a bound of 6.
    """
    strict = maximal_coupling(at, x, at.p)
    most = at.draft_length or at.n  # whatever the other texts of the batch have drafted
    size = max(1, min(window, most - 1))
    three = (at.p1 if at.greedy else at.p).topk(min(3, at.p.shape[-1]), -1).values
    unsure = entropy_of(three) >= entropy
    unsure &= pick(at.p1 if at.greedy else at.p, x) > 0
    accept, drafted = at.by_round(strict.accept * at.drafted), at.by_round(at.drafted)
    following = max(size, min(bound or 0, most))
    followed = torch.nn.functional.pad(drafted, (0, following))[:, following:]
    opens = at.by_round(unsure) & drafted & followed
    reached, closed = [torch.ones_like(accept[:, 0])], [torch.ones_like(accept[:, 0])]
    deferred: list[Tensor] = []
    for i in range(at.n):
        rejected = closed[i] * (1 - accept[:, i])
        passes = accept[:, i + 1 : i + 1 + size].prod(-1) * opens[:, i]
        deferred.append(rejected * passes)
        reached.append(reached[i] - rejected + deferred[i])
        ends = deferred[i - size] if i >= size else torch.zeros_like(rejected)
        closed.append(closed[i] * accept[:, i] + ends)
    chances = given_earlier(torch.stack(reached[1:], -1).clamp_min(0))
    return Verdict(chances, strict.residual, expected=chances)


@rule(
    Parameter("acceptance", None, "instead of L: rate of each draft that is judged", Rates),
    Parameter(
        "length",
        3.0,
        "tokens per round, from 1 to N + 1",
        ge=1,
        when=("acceptance", None),
        sign="L=",
    ),
    summary="no verification: accept so many drafts, whatever the models say",
    source="several serving engines, for benchmarks",
    law=laws.synthetic,
    verifies=False,
)
def synthetic(
    at: Positions,
    x: Tensor,
    *,
    length: float | None = None,
    acceptance: Sequence[float] | None = None,
    of: Rule | None = None,
) -> Verdict:
    """Accept floor(L - 1) drafts of a round, and the next with the rest of L - 1; replace as `sd`.

    With rates in place of L, each draft that is judged is accepted with the rate of its position.
    The rule ``of``, if any, is computed in place of `sd`, so that a round takes its time.

    It shows what a round costs if L tokens come of it in the mean. Its texts are no answers.

    Source: vLLM, ``synthetic_acceptance_length`` and ``synthetic_acceptance_rates``; other engines
    force acceptance likewise.
    """
    verdict = maximal_coupling(at, x, at.p) if of is None else of(at, x)
    # Depends on the rule's result, so that a compiler cannot remove its computation.
    accept = verdict.accept.clamp(0, 0)
    if acceptance is None:
        assert length is not None
        accept = accept + (length - 1 - at.position.to(at.p)).clamp(0, 1)
    else:  # without a tensor of the rates, which a GPU would be waited for
        for number, rate in enumerate(acceptance):
            accept = torch.where(at.position < number, accept, rate)
    accept = accept * at.drafted
    return verdict._replace(accept=accept, expected=accept)


def _without(at: Positions, x: Tensor, accept: Tensor) -> Verdict:
    """Accept with ``accept`` ``[K, V]``; replace x by a draw from p without x."""
    residual = at.p.scatter(-1, x.unsqueeze(-1), 0)
    return Verdict(pick(accept, x), normalise(residual, at.p), expected=(at.q * accept).sum(-1))
