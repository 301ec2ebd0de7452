"""One round of any method, for several texts side by side.

A round drafts N tokens with the draft model, reads them with the target in one pass, lets the rule
judge each, keeps those before the first rejection and adds one more token: a draw from the residual
of the rejected position, or from p after the last draft (the bonus token). With N = 0 a round is
one autoregressive step. Nothing here waits for the device, and no rule is known by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampling, draw
from specbench.engine.runner import Runner
from specbench.methods import Positions, Verdict

Verify = Callable[[Positions, Tensor], Verdict]
"""A rule with its parameters bound: ``verify(positions, x) -> verdict``."""


class Round(NamedTuple):
    """Outcome of one round of B texts on the device."""

    accepted: Tensor  # [B] number of drafts accepted
    expected: Tensor  # [B, N] what the rule said of each draft
    weights: Tensor | None  # [B, N]


def play_round(
    target: Runner,
    draft: Runner | None,
    verify: Verify | None,
    tokens: Tensor,
    length: Tensor,
    reach: int | None,
    chance: Tensor,
    sampling: Sampling,
) -> Round:
    """Draft, verify and append up to N + 1 tokens to every text.

    Args:
        target: Target model; it has read all tokens of every text but the last.
        draft: Draft model; it has read all tokens but the last one or two. None for N = 0.
        verify: The rule; None for N = 0.
        tokens: ``[B, capacity]`` all tokens so far; written in place after ``length``.
        length: ``[B]`` number of tokens of each text so far.
        reach: The largest of them; None lets the models look at their whole caches.
        chance: ``[B, 2 N + 1]`` uniform numbers.
        sampling: Processing of the logits.
    """
    n, texts = chance.shape[1] // 2, len(tokens)
    end = length[:, None]
    said: list[tuple[Tensor, Tensor, Tensor]] = []
    for i in range(n):
        assert draft is not None
        # After a round that kept all drafts, the last of them is unread; reading the last two
        # tokens is right after any round, and one shape for all of them.
        at = end + torch.arange(i - 2 if i == 0 else i - 1, i, device=tokens.device)
        at = at.clamp_min(0)  # of a prompt of one token, that one twice
        hidden = draft.read(tokens.gather(1, at), at, _after(reach, i))[:, -1]
        q, q1 = sampling.distributions(draft.logits(hidden))
        tokens.scatter_(1, end + i, draw(q, chance[:, i])[:, None])
        said.append((q, q1, hidden))

    at = end + torch.arange(-1, n, device=tokens.device)
    h_p = target.read(tokens.gather(1, at), at, _after(reach, n))
    p, p1 = sampling.distributions(target.logits(h_p))
    if verify is None:
        tokens.scatter_(1, end, draw(p[:, 0], chance[:, 0])[:, None])
        return Round(torch.zeros_like(length), p.new_zeros(texts, 0), None)

    q, q1, h_q = (torch.stack(rows, 1) for rows in zip(*said, strict=True))
    p_, q_, p1_, q1_, h_p_, h_q_ = (rows[:, :n].flatten(0, 1) for rows in (p, q, p1, q1, h_p, h_q))
    x = tokens.gather(1, at[:, 1:]).flatten()
    verdict = verify(Positions(p_, q_, p1_, q1_, h_p_, h_q_, sampling.greedy), x)
    accept, expected, residual = (
        rows.unflatten(0, (texts, n))
        for rows in (verdict.accept, verdict.expected, verdict.residual)
    )
    accepted = (chance[:, n : 2 * n] < accept).cumprod(1).sum(1)
    rows = torch.arange(texts, device=tokens.device)
    last = torch.cat((residual, p[:, n:]), 1)[rows, accepted]
    tokens.scatter_(1, end + accepted[:, None], draw(last, chance[:, -1])[:, None])
    weights = None if verdict.weight is None else verdict.weight.unflatten(0, (texts, n))
    return Round(accepted, expected, weights)


def _after(reach: int | None, drafted: int) -> int | None:
    return None if reach is None else reach + drafted
