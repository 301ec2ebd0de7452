"""The law of rounds whose drafts are judged together, by all drafts and all flags of a round.

Such a rule has no law of the next token alone: whether a draft is accepted depends on those after
it. A round is enumerated instead: all N drafts that have mass under q, and for each of them all
ways in which single drafts pass or fail. That is feasible where q has few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.methods.laws import normalised
from specbench.validation.laws import laws_at
from specbench.validation.texts import DRAWN, NOTHING, Context, Setup

Beginning = tuple[tuple[int, ...], int]
"""The first tokens of an output, and the position in its round of the token that follows."""
Accepts = Callable[..., Tensor]
"""``accepts(flags [F, N], p [M, N, V], x [M, N], **parameters)`` is whether each draft of M rounds
is accepted if those before it are, ``[M, F, N]``; a flag says whether `sd` accepts it."""


def fly(
    flags: Tensor, p: Tensor, x: Tensor, *, window: int, entropy: float, bound: int | None = None
) -> Tensor:
    """Accept what passes, and what is deferred: the target is unsure, and the next W pass.

    Source: the flags of FLy's authors, see ``methods.serving.fly``.
    """
    n = flags.shape[1]
    size = max(1, min(window, n - 1))
    unsure = torch.special.entr(p.topk(min(3, p.shape[-1])).values).sum(-1) >= entropy
    unsure &= p.gather(-1, x.clamp_min(0)[..., None])[..., 0] > 0
    drafted, last = (
        x.ne(NOTHING).sum(-1, keepdim=True),
        torch.arange(n) + max(size, min(bound or 0, n)),
    )
    windows = [flags[:, i + 1 : i + 1 + size].all(-1) for i in range(n)]
    may: Tensor = unsure & (last.to(x.device) < drafted)
    return flags | may[:, None] & torch.stack(windows, -1)


BLOCKS: dict[str, Accepts] = {"fly": fly}
"""Rules whose law is that of a round's drafts together, by name."""


class Rounds(NamedTuple):
    """All rounds after a text, by their M drafts."""

    drafts: Tensor  # [M, N], NOTHING where none is proposed
    mass: Tensor  # [M] of these drafts under q
    reached: Tensor  # [M, N + 1] probability that at least so many of them are accepted
    p: Tensor  # [M, N + 1, V]
    q: Tensor  # [M, N + 1, V]


def next_by_rounds(
    setup: Setup, context: Context
) -> Callable[[Sequence[Beginning]], tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return the laws of the tokens after outputs, see ``outputs.NextToken``, by whole rounds."""
    rounds_after = cache(lambda output: _rounds(setup, [*context.prompt, *output]))

    def next_token(states: Sequence[Beginning]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = []
        for output, i in states:
            rounds = rounds_after(output[: len(output) - i])
            begun = rounds.drafts.new_tensor(output[len(output) - i :])
            same = (rounds.drafts[:, :i] == begun).all(-1)
            drafts, mass, reached, p, q = (part[same] for part in rounds)
            if i == setup.drafts:
                rows.append((torch.zeros_like(p[0, i]), p[0, i], p[0, i], q[0, i]))
                continue
            masses = mass * reached[:, i + 1] / (mass @ reached[:, i])
            accepted = torch.zeros_like(p[0, i]).index_add(0, drafts[:, i].clamp_min(0), masses)
            residual = normalised((p[0, i] - q[0, i]).clamp_min(0))
            replaced = (1 - accepted.sum()).clamp_min(0) * residual
            rows.append((accepted, replaced, p[0, i], q[0, i]))
        accepted, replaced, p, q = map(torch.stack, zip(*rows, strict=True))
        return accepted, replaced, p, q

    return next_token


def _rounds(setup: Setup, text: Sequence[int]) -> Rounds:
    """Enumerate the rounds after a text by plain passes."""
    n, proposed = setup.drafts, setup.propose(text)
    proposed += [NOTHING] * (n - len(proposed))
    blocks: list[list[int]] = [[]]
    for i, token in enumerate(proposed):
        if token != DRAWN:
            blocks = [[*block, token] for block in blocks]
            continue
        q = _laws(setup, text, blocks, proposed)[1][:, i]
        blocks = [[*blocks[row], draft] for row, draft in q.nonzero().tolist()]
    drafts = torch.tensor(blocks, device=setup.pair.target.device)
    p, q, inside = _laws(setup, text, blocks, proposed)
    chosen = drafts.clamp_min(0)[..., None]
    p_x, q_x = (law[:, :n].gather(-1, chosen)[..., 0] for law in (p, q))
    strict = torch.where(q_x > 0, p_x / q_x, 0).clamp_max(1)
    flags = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n).to(drafts.device)
    ways = torch.where(flags, strict[:, None], 1 - strict[:, None]).prod(-1)  # [M, F]
    accepts = BLOCKS[setup.method.method](flags, p[:, :n], drafts, **dict(setup.method.parameters))
    passed = torch.where(inside[:, None, None], accepts, flags).cumprod(-1)
    reached = torch.cat((ways.sum(-1, True), (ways[..., None] * passed).sum(1)), -1)
    drawn = torch.where(drafts == NOTHING, 1, q_x)
    return Rounds(drafts, drawn.prod(-1), reached, p, q)


def _laws(
    setup: Setup, text: Sequence[int], blocks: Sequence[list[int]], proposed: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return p and q after a text and each beginning of blocks, and whether it is inside."""
    size = len(blocks[0]) + 1
    whole = [[*text, *(max(token, 0) for token in block), 0] for block in blocks]
    positions = torch.arange(size).expand(len(blocks), size)
    expected = torch.tensor([*proposed, NOTHING])[:size].repeat(len(blocks))
    at = laws_at(setup, whole, positions, expected.to(setup.pair.target.device)).at
    p, q = (law.view(len(blocks), size, -1) for law in (at.p, at.q))
    inside = torch.ones(len(at.p), device=p.device) if at.inside is None else at.inside
    return p, q, inside.view(len(blocks), size)[:, 0].bool()
