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

Verify = Callable[[Positions, Tensor], Verdict]
"""A rule with its parameters bound: ``verify(positions, x) -> verdict``."""


class Drafts(NamedTuple):
    """N drafted tokens of B texts, and where they come from."""

    x: Tensor  # [B, N]
    q: Tensor  # [B, N, V]
    q1: Tensor  # [B, N, V]
    hidden: Tensor  # [B, N, hidden]


class Reading(NamedTuple):
    """What the target says of the next N + 1 tokens of B texts."""

    p: Tensor  # [B, N + 1, V]
    p1: Tensor  # [B, N + 1, V]
    hidden: Tensor  # [B, N + 1, hidden]


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
    """
    begun = moment(target.device)
    drafts = engine(propose)(draft, last, length, reach, chance, sampling) if draft else None
    drafted = moment(target.device)
    reading = engine(read)(target, last, length, reach, drafts and drafts.x, sampling)
    verified = moment(target.device)
    outcome = engine(judge)(verify, drafts, reading, last, length, chance, sampling.greedy)
    return outcome, Lap(begun, drafted, verified, moment(target.device))


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
        # After a round that kept all drafts, the last of them is unread; reading the last two
        # tokens is right after any round, and one shape for all of them.
        tokens = last if i == 0 else drafts[-1].x
        at = length[:, None] + torch.arange(i - tokens.shape[1], i, device=last.device)
        hidden = draft.read(tokens, at.clamp_min(0), _after(reach, i))[:, -1:]
        q, q1 = sampling.distributions(draft.logits(hidden[:, 0]))
        x = draw(q, chance[:, i])
        drafts.append(Drafts(x[:, None], q[:, None], q1[:, None], hidden))
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
    verify: Verify | None,
    drafts: Drafts | None,
    reading: Reading,
    last: Tensor,
    length: Tensor,
    chance: Tensor,
    greedy: bool,
) -> Round:
    """Accept drafts up to the first that the rule rejects, and draw one more token."""
    p, p1, h_p = reading
    texts, n = len(p), p.shape[1] - 1
    if verify is None or drafts is None:
        accepted = torch.zeros_like(length)[:, None]
        fresh = draw(p[:, 0], chance[:, 0])[:, None]
        told: list[Tensor] = []
    else:
        x, q, q1, h_q = drafts
        rows = (p[:, :n], q, p1[:, :n], q1, h_p[:, :n], h_q)
        p_, q_, p1_, q1_, h_p_, h_q_ = (part.flatten(0, 1) for part in rows)
        verdict = verify(Positions(p_, q_, p1_, q1_, h_p_, h_q_, greedy), x.flatten())
        accept, expected, residual = (
            part.unflatten(0, (texts, n))
            for part in (verdict.accept, verdict.expected, verdict.residual)
        )
        accepted = (chance[:, n : 2 * n] < accept).cumprod(1).sum(1, keepdim=True)
        choice = torch.cat((residual, p[:, n:]), 1)
        here = accepted[..., None].expand(-1, -1, choice.shape[-1])
        final = draw(choice.gather(1, here)[:, 0], chance[:, -1])[:, None]
        fresh = torch.cat((x, final), 1).scatter(1, accepted, final)
        told = [x, p[:, :n].argmax(-1) == x, expected]
        if verdict.weight is not None:
            told.append(verdict.weight.unflatten(0, (texts, n)))
    length = length + accepted[:, 0] + 1
    newest = torch.cat((last[:, 1:], fresh), 1)
    last = newest.gather(1, torch.cat((accepted, accepted + 1), 1))
    return Round(last, length, torch.cat((length[:, None], accepted, fresh, *told), 1))


def _after(reach: int | None, drafted: int) -> int | None:
    return None if reach is None else reach + drafted
