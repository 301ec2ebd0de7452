"""One round of any method, for several texts side by side.

A round drafts N tokens with the draft model, reads them with the target in one pass, lets the rule
judge each, keeps those before the first rejection and adds one more token: a draw from the residual
of the rejected position, or from p after the last draft (the bonus token). With N = 0 a round is
one autoregressive step. Each of the three parts is a function of tensors that waits for no device
and knows no rule by name, so that an engine may compile it or capture it in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampling, draw
from specbench.engine.clock import Moment, moment
from specbench.engine.engines import Engine
from specbench.engine.runner import Runner
from specbench.methods import Positions, Verdict
from specbench.methods.control import DraftControl, Outlook

Verify = Callable[[Positions, Tensor], Verdict]
"""A rule with its parameters bound: ``verify(positions, x) -> verdict``."""


class Drafts(NamedTuple):
    """Up to N drafted tokens of B texts, and where they come from."""

    x: Tensor  # [B, n]
    q: Tensor  # [B, n, V]
    q1: Tensor  # [B, n, V]
    hidden: Tensor  # [B, n, hidden]


class Reading(NamedTuple):
    """What the target says of the next n + 1 tokens of B texts."""

    p: Tensor  # [B, n + 1, V]
    p1: Tensor  # [B, n + 1, V]
    hidden: Tensor  # [B, n + 1, hidden]


class Round(NamedTuple):
    """Outcome of one round of B texts on the device."""

    last: Tensor  # [B, 2] the two newest tokens
    length: Tensor  # [B] tokens of each text
    report: Tensor  # [B, columns] all that the host wants to know, see ``records.read_report``


class Lap(NamedTuple):
    """Moments between the parts of a round."""

    begun: Moment
    drafted: Moment
    verified: Moment
    judged: Moment


def play_round(
    engine: Engine,
    target: Runner,
    draft: Runner | None,
    verify: Verify | None,
    last: Tensor,
    length: Tensor,
    reach: int | None,
    chance: Tensor,
    sampling: Sampling,
    control: DraftControl | None = None,
    going: Tensor | None = None,
) -> tuple[Round, Lap]:
    """Draft, verify and choose up to N + 1 tokens for every text.

    Args:
        engine: Carries out the parts.
        target: Target model; it has read all tokens of every text but the last.
        draft: Draft model; it has read all tokens but the last one or two. None for N = 0.
        verify: The rule; None for N = 0.
        last: ``[B, 2]`` the two newest tokens; of a text of one token, that one twice.
        length: ``[B]`` number of tokens of each text so far.
        reach: The largest of them; None lets the models look at their whole caches.
        chance: ``[B, 2 N + 1]`` uniform numbers.
        sampling: Processing of the logits.
        control: Decides how many of the N tokens are drafted; None drafts all of them.
        going: ``[B]`` for a control: which rows have a text.
    """
    begun = moment(target.device)
    if draft is None or verify is None:
        outcome = engine(step)(target, last, length, reach, chance, sampling)
        end = moment(target.device)
        return outcome, Lap(begun, begun, end, end)
    stop = None
    if control is None or going is None:
        drafts = engine(propose)(draft, last, length, reach, chance, sampling)
    else:
        outlook = control.begin(going)
        drafts, stop = propose_some(
            engine, control, outlook, draft, last, length, reach, chance, sampling
        )
    drafted = moment(target.device)
    reading = engine(read)(target, last, length, reach, drafts.x, sampling)
    verified = moment(target.device)
    outcome = engine(judge)(verify, drafts, reading, last, length, chance, sampling.greedy, stop)
    return outcome, Lap(begun, drafted, verified, moment(target.device))


def step(
    target: Runner,
    last: Tensor,
    length: Tensor,
    reach: int | None,
    chance: Tensor,
    sampling: Sampling,
) -> Round:
    """Draw the next token from p, without a draft; for the arguments see ``play_round``."""
    p = read(target, last, length, reach, None, sampling).p
    x = draw(p[:, 0], chance[:, 0])[:, None]
    none, length = torch.zeros_like(x), length + 1
    report = torch.cat((length[:, None], none, none, x), 1)
    return Round(torch.cat((last[:, 1:], x), 1), length, report)


def propose(
    draft: Runner,
    last: Tensor,
    length: Tensor,
    reach: int | None,
    chance: Tensor,
    sampling: Sampling,
) -> Drafts:
    """Draft N tokens; for the arguments see ``play_round``."""
    drafts: list[Drafts] = []
    for i in range(chance.shape[1] // 2):
        tokens = drafts[-1].x if drafts else last
        drafts.append(propose_one(draft, tokens, i, length, reach, chance, sampling))
    return join(drafts)


def propose_some(
    engine: Engine,
    control: DraftControl,
    outlook: Outlook,
    draft: Runner,
    last: Tensor,
    length: Tensor,
    reach: int | None,
    chance: Tensor,
    sampling: Sampling,
) -> tuple[Drafts, Tensor]:
    """Draft until no text is worth another token, at most N; return how many each of them is.

    The host asks after every draft, which on a GPU waits for it.
    """
    drafts: list[Drafts] = []
    for i in range(chance.shape[1] // 2):
        tokens = drafts[-1].x if drafts else last
        one = engine(propose_one)(draft, tokens, i, length, reach, chance, sampling)
        drafts.append(Drafts(*(part.clone() for part in one)))
        outlook = control.after(outlook, one.q[:, 0], i + 1)
        if not outlook.going.any():
            break
    return join(drafts), outlook.stop


def propose_one(
    draft: Runner,
    tokens: Tensor,
    i: int,
    length: Tensor,
    reach: int | None,
    chance: Tensor,
    sampling: Sampling,
) -> Drafts:
    """Read ``tokens`` ``[B, k]`` and draft the i-th token of the round, from 0."""
    # After a round that kept all drafts, the last of them is unread; reading the last two tokens
    # first is right after any round, and one shape for all of them.
    at = length[:, None] + torch.arange(i - tokens.shape[1], i, device=tokens.device)
    hidden = draft.read(tokens, at.clamp_min(0), _after(reach, i))[:, -1:]
    q, q1 = sampling.distributions(draft.logits(hidden[:, 0]))
    x = draw(q, chance[:, i])
    return Drafts(x[:, None], q[:, None], q1[:, None], hidden)


def join(drafts: list[Drafts]) -> Drafts:
    """Put drafts of the same texts one after the other."""
    return Drafts(*(torch.cat(parts, 1) for parts in zip(*drafts, strict=True)))


def read(
    target: Runner,
    last: Tensor,
    length: Tensor,
    reach: int | None,
    x: Tensor | None,
    sampling: Sampling,
) -> Reading:
    """Read the newest token of every text and N drafts ``x`` of each in one pass."""
    tokens = last[:, 1:] if x is None else torch.cat((last[:, 1:], x), 1)
    n = tokens.shape[1] - 1
    at = length[:, None] + torch.arange(-1, n, device=last.device)
    hidden = target.read(tokens, at, _after(reach, n))
    return Reading(*sampling.distributions(target.logits(hidden)), hidden)


def judge(
    verify: Verify,
    drafts: Drafts,
    reading: Reading,
    last: Tensor,
    length: Tensor,
    chance: Tensor,
    greedy: bool,
    stop: Tensor | None = None,
) -> Round:
    """Accept drafts up to the first that the rule rejects, and draw one more token.

    Drafts from ``stop`` ``[B]`` on are not judged: after those before it comes a draw from p.
    """
    p, p1, h_p = reading
    x, q, q1, h_q = drafts
    texts, n, most = len(p), x.shape[1], chance.shape[1] // 2
    rows = (p[:, :n], q, p1[:, :n], q1, h_p[:, :n], h_q)
    p_, q_, p1_, q1_, h_p_, h_q_ = (part.flatten(0, 1) for part in rows)
    verdict = verify(Positions(p_, q_, p1_, q1_, h_p_, h_q_, greedy, n), x.flatten())
    accept, expected, residual = (
        part.unflatten(0, (texts, n))
        for part in (verdict.accept, verdict.expected, verdict.residual)
    )
    proposed = (torch.full_like(length, n) if stop is None else stop)[:, None]
    judged = torch.arange(n, device=p.device) < proposed
    kept = judged & (chance[:, most : most + n] < accept)
    accepted = kept.cumprod(1).sum(1, keepdim=True)
    text = torch.arange(texts, device=p.device)[:, None]
    rest = residual[text, accepted.clamp_max(n - 1)]
    choice = torch.where((accepted < proposed)[..., None], rest, p[text, accepted])
    final = draw(choice[:, 0], chance[:, -1])[:, None]
    fresh = torch.cat((x, final), 1).scatter(1, accepted, final)

    length = length + accepted[:, 0] + 1
    newest = torch.cat((last[:, 1:], fresh), 1)
    last = newest.gather(1, torch.cat((accepted, accepted + 1), 1))
    agreed = p[:, :n].argmax(-1) == x
    weight = torch.full_like(expected, torch.nan)
    if verdict.weight is not None:
        weight = verdict.weight.unflatten(0, (texts, n))
    report = (length[:, None], accepted, proposed, fresh, x, agreed, expected, weight)
    return Round(last, length, torch.cat(report, 1))


def _after(reach: int | None, drafted: int) -> int | None:
    return None if reach is None else reach + drafted
