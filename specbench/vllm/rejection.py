"""One round of verification for vLLM's flattened drafts, by ``decoding.round.verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.drafting import Drafts, State
from specbench.decoding.records import new_token_columns
from specbench.decoding.round import TargetOutput, verify
from specbench.vllm.rules import rule_of

END = -1  # behind the tokens of a text


class Flattened(NamedTuple):
    """The drafts of B requests one behind the other, T in all, as vLLM gives them."""

    x: Tensor  # [T] drafted tokens
    q: Tensor | None  # [T, V] that they were drawn from; at temperature 0 the softmax at 1
    logits: Tensor  # [T, V] of the target, processed
    raw_logits: Tensor  # [T, V] of the target
    counts: Sequence[int]  # of each request's drafts


def reject(
    drafts: Flattened,
    bonus: Tensor,
    *,
    rules: Sequence[str],
    temperatures: Sequence[float],
    generators: Mapping[int, torch.Generator],
    device: torch.device,
    most: int,
) -> Tensor:
    """Return the new tokens of each request ``[B, most + 1]``, ``END`` behind its last one.

    Requests with the same rule and temperature are judged together.

    Args:
        drafts: The drafts.
        bonus: ``[B, 1]`` the tokens that follow if all drafts of a request are accepted.
        rules: The text of each request's rule.
        temperatures: Of each request; 0 is greedy.
        generators: Of requests with a seed, by row.
        device: Of the tensors.
        most: The largest number of drafts of a request.
    """
    tokens = torch.full((len(rules), most + 1), END, dtype=torch.int32, device=device)
    if most == 0:
        tokens[:] = bonus
        return tokens
    groups: dict[tuple[str, float], list[int]] = {}
    for row, key in enumerate(zip(rules, temperatures, strict=True)):
        groups.setdefault(key, []).append(row)
    for (rule, temperature), rows in groups.items():
        selected = torch.tensor(rows, device=device)
        uniforms = torch.rand(len(rows), 2 * most + 1, device=device)
        for number, row in enumerate(rows):
            if row in generators:
                uniforms[number].uniform_(generator=generators[row])
        tokens[selected] = _verified(
            drafts, rule, temperature, rows, bonus[selected].long(), uniforms
        )
    return tokens


def _verified(
    drafts: Flattened,
    rule: str,
    temperature: float,
    rows: Sequence[int],
    bonus: Tensor,
    uniforms: Tensor,
) -> Tensor:
    """Return the new tokens of requests with one rule and temperature."""
    device, n = drafts.logits.device, uniforms.shape[1] // 2
    starts = [sum(drafts.counts[:row]) for row in rows]
    last = max(len(drafts.x) - 1, 0)
    places = torch.tensor(
        [[min(start + i, last) for i in range(n)] for start in starts], device=device
    )
    proposed = torch.tensor([drafts.counts[row] for row in rows], device=device)
    exists = (torch.arange(n, device=device) < proposed[:, None])[..., None]
    x = drafts.x.long().clamp_min(0)[places]
    p1 = drafts.raw_logits[places].softmax(-1)
    one_hot = torch.zeros_like(p1).scatter_(-1, x[..., None], 1.0)
    greedy = temperature == 0
    logits = drafts.logits[places]
    p = (
        torch.zeros_like(p1).scatter_(-1, logits.argmax(-1, True), 1.0)
        if greedy
        else logits.softmax(-1)
    )
    if drafts.q is None:
        q = q1 = one_hot
    else:
        drawn = drafts.q[places]
        # vLLM draws drafts from a softmax with the request's temperature and without filters.
        q, q1 = (one_hot, drawn) if greedy else (drawn, _at_temperature_1(drawn, temperature))
    # The token that follows all drafts is drawn already: it has all mass.
    final = torch.zeros_like(p[:, :1])
    p = torch.cat((p, final), 1)
    p = p.scatter(1, proposed[:, None, None].expand_as(p[:, :1]), 0.0)
    p[torch.arange(len(rows), device=device), proposed, bonus[:, 0]] = 1.0
    none = p1.new_zeros(*x.shape, 0)
    state = State(
        last=x.new_zeros(len(rows), 2),
        length=x.new_zeros(len(rows)),
        uniforms=uniforms,
        active=torch.ones_like(proposed, dtype=torch.bool),
        kv_length=None,
    )
    output = verify(
        rule_of(rule),
        state,
        Drafts(x, q * exists, q1, none, proposed),
        TargetOutput(p, torch.cat((p1, final), 1), p1.new_zeros(len(rows), n + 1, 0)),
        greedy,
    )
    accepted = output.report[:, 1:2]
    tokens = output.report[:, new_token_columns(n)].int()
    return torch.where(torch.arange(n + 1, device=device) <= accepted, tokens, END)


def _at_temperature_1(q: Tensor, temperature: float) -> Tensor:
    """Return the softmax at temperature 1 of the logits behind a softmax at another one."""
    if temperature == 1:
        return q
    powers = q**temperature
    return powers / powers.sum(-1, keepdim=True)
