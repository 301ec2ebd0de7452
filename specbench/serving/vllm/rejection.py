"""One round of verification for vLLM's flattened drafts, by ``decoding.round.verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from specbench.decoding.drafting import Drafts, State
from specbench.decoding.records import new_token_columns
from specbench.decoding.round import TargetOutput, verify
from specbench.serving.vllm.rules import rule_of

END = -1  # behind the tokens of a text


class Flattened(NamedTuple):
    """The drafts of B requests one behind the other, T in all, as vLLM gives them."""

    x: Tensor  # [T] drafted tokens
    q: Tensor | None  # [T, V] that they were drawn from; at temperature 0 the softmax at 1
    logits: Tensor  # [T, V] of the target, processed
    raw_logits: Tensor  # [T, V] of the target
    h_p: Tensor  # [T, hidden] of the target
    h_q: Tensor | None  # [T, hidden] of the draft; None if no model drafts
    counts: Sequence[int]  # of each request's drafts


def reject(
    drafts: Flattened,
    bonus: Tensor,
    *,
    rules: Sequence[str],
    temperatures: Sequence[float],
    generators: Mapping[int, torch.Generator],
) -> tuple[Tensor, Tensor]:
    """Verify the drafts of all requests; those with the same rule and temperature together.

    Args:
        drafts: The drafts; n is the largest number of a request.
        bonus: ``[B, 1]`` the tokens that follow if all drafts of a request are accepted.
        rules: The text of each request's rule.
        temperatures: Of each request; 0 is greedy.
        generators: Of requests with a seed, by row.

    Returns:
        The new tokens of each request ``[B, n + 1]`` with ``END`` behind its last one, and the
        report ``[B, columns]`` of the round, see ``records.read_report``.
    """
    device, n = drafts.logits.device, max(drafts.counts, default=0)
    if n == 0:
        return bonus.int(), bonus
    uniforms = torch.rand(len(rules), 2 * n + 1, device=device)
    for row, generator in generators.items():
        uniforms[row].uniform_(generator=generator)
    groups: dict[tuple[str, float], list[int]] = {}
    for row, key in enumerate(zip(rules, temperatures, strict=True)):
        groups.setdefault(key, []).append(row)
    reports = [
        _report(drafts, *key, rows, bonus[rows].long(), uniforms[rows])
        for key, rows in groups.items()
    ]
    order = torch.tensor([row for rows in groups.values() for row in rows])
    report = torch.cat(reports)[order.argsort().to(device)]
    tokens = report[:, new_token_columns(n)].int()
    return torch.where(torch.arange(n + 1, device=device) <= report[:, 1:2], tokens, END), report


def _report(
    drafts: Flattened,
    rule: str,
    temperature: float,
    rows: Sequence[int],
    bonus: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """Return the reports of requests with one rule and temperature."""
    device, n = drafts.logits.device, uniforms.shape[1] // 2
    starts, last = [0, *accumulate(drafts.counts)], len(drafts.x) - 1
    index = torch.tensor([[min(starts[row] + i, last) for i in range(n)] for row in rows])
    index = index.to(device, non_blocking=True)  # [B, n]; what is beyond the counts is ignored
    proposed = torch.tensor([drafts.counts[row] for row in rows]).to(device, non_blocking=True)
    exists = (torch.arange(n, device=device) < proposed[:, None])[..., None]
    x = drafts.x.long().clamp_min(0)[index]
    logits, p1 = drafts.logits[index], drafts.raw_logits[index].softmax(-1)
    greedy = temperature == 0
    p = _one_hot(logits.argmax(-1), p1) if greedy else logits.softmax(-1)
    if drafts.q is None:
        q = q1 = _one_hot(x, p1)
    else:  # vLLM draws from a softmax with the request's temperature and without filters
        q = drafts.q[index]
        q1 = q if temperature in (0, 1) else normalize(q**temperature, p=1, dim=-1)
        q = _one_hot(x, p1) if greedy else q
    # The token that follows all drafts is drawn already: it has all mass.
    final = torch.zeros_like(p[:, :1])
    p = torch.cat((p, final), 1).scatter(1, proposed[:, None, None].expand_as(final), 0.0)
    p[torch.arange(len(rows), device=device), proposed, bonus[:, 0]] = 1.0
    top = torch.cat((drafts.raw_logits[index].amax(-1), final[..., 0]), 1)
    h_p = drafts.h_p[index]
    h_q = h_p[..., :0] if drafts.h_q is None else drafts.h_q[index]
    state = State(
        last=x.new_zeros(len(rows), 2),
        length=x.new_zeros(len(rows)),
        uniforms=uniforms,
        active=torch.ones_like(proposed, dtype=torch.bool),
        kv_length=None,
    )
    return verify(
        rule_of(rule, str(device)),
        state,
        Drafts(x, q * exists, q1, h_q, proposed),
        TargetOutput(p, torch.cat((p1, final), 1), h_p, top),
        greedy,
    ).report


def _one_hot(tokens: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(-1, tokens[..., None], 1.0)
