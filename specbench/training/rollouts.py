"""Roll-outs: texts sampled from the verification distribution v, many at a time.

Both models read the same tokens in lockstep and each token is drawn from ``v = w p + (1 - w) q``
directly. That is the law speculative decoding emits, bonus tokens apart, at a fraction of the time.
Kept per token is what the loss needs and no more: two hidden vectors and three scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from specbench.engine.heads import LinearHead
from specbench.engine.loading import LoadedPair, encode
from specbench.engine.runner import Runner


class Rollouts(NamedTuple):
    """B sampled texts with M tokens in all, end tokens included.

    Attributes:
        texts: B texts.
        row: ``[M]`` which text a token belongs to.
        h_p: ``[M, hidden_p]`` target's hidden states that predict the token.
        h_q: ``[M, hidden_q]`` the draft's.
        p: ``[M]`` probability of the token under the target.
        q: ``[M]`` probability of the token under the draft.
        tv: ``[M]`` total variation between the two distributions there.
    """

    texts: list[str]
    row: Tensor
    h_p: Tensor
    h_q: Tensor
    p: Tensor
    q: Tensor
    tv: Tensor


class _Reader:
    """One model reading a batch of left-padded texts a token at a time."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.cache = DynamicCache(config=runner.config)

    def read(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Read new tokens ``[B, k]``; return next-token probabilities ``[B, V]``, hidden states."""
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        hidden = self.runner.base(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        logits = self.runner.output(hidden)[:, : self.runner.vocabulary].float()
        return logits.softmax(-1), hidden


@torch.no_grad()
def roll_out(
    pair: LoadedPair,
    head: LinearHead,
    prompts: Sequence[str],
    max_new_tokens: int,
    generator: torch.Generator,
) -> Rollouts:
    """Sample one text per prompt from v at temperature 1; repeat a prompt for several texts.

    Args:
        pair: Loaded models.
        head: Weighs target against draft.
        prompts: B prompts.
        max_new_tokens: Limit on a text's tokens.
        generator: Source of the draws.
    """
    device = pair.target.device
    ids = [encode(pair.tokenizer, prompt) for prompt in prompts]
    width = max(len(row) for row in ids)
    tokens = torch.tensor([[0] * (width - len(row)) + row for row in ids], device=device)
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in ids], device=device)
    target, draft = _Reader(pair.target), _Reader(pair.draft)
    ends = torch.tensor(sorted(pair.eos_ids), device=device)
    alive = torch.ones(len(ids), dtype=torch.bool, device=device)
    outputs: list[list[int]] = [[] for _ in ids]
    kept: list[tuple[Tensor, ...]] = []
    for _ in range(max_new_tokens):
        p, h_p = target.read(tokens, mask)
        q, h_q = draft.read(tokens, mask)
        v = torch.lerp(q, p, head(h_p, h_q).unsqueeze(-1))
        tokens = torch.multinomial(v, 1, generator=generator)
        tv = (p - q).abs().sum(-1) / 2
        rows = alive.nonzero().squeeze(-1)
        p_x, q_x = (d.gather(-1, tokens).squeeze(-1) for d in (p, q))
        kept.append((rows, *(t[rows] for t in (h_p, h_q, p_x, q_x, tv))))
        ended = torch.isin(tokens.squeeze(-1), ends)
        for row in (alive & ~ended).nonzero().squeeze(-1).tolist():
            outputs[row].append(int(tokens[row]))
        alive &= ~ended
        if not alive.any():
            break
        mask = torch.cat((mask, mask.new_ones(len(ids), 1)), -1)
    row, *columns = (torch.cat(parts) for parts in zip(*kept, strict=True))
    texts = pair.tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return Rollouts(texts, row, *columns)
