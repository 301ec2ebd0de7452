"""The target's texts for the training of a module that drafts, and its states on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specbench.engine.attention import angles_at, visible
from specbench.engine.lockstep import LockstepBatch
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.training.rollouts import COMPACT_BELOW


class TargetText(NamedTuple):
    """A text of the target."""

    tokens: list[int]  # prompt and output, including the end token
    prompt: int  # tokens of the prompt


@torch.no_grad()
def sample_texts(
    pair: LoadedPair, prompts: Sequence[list[int]], new_tokens: int, generator: torch.Generator
) -> list[TargetText]:
    """Sample one text of the target per prompt at temperature 1."""
    target = pair.runners[0]
    batch = LockstepBatch(target, prompts, new_tokens)
    texts = [list(prompt) for prompt in prompts]
    rows = torch.arange(len(prompts), device=target.device)  # the text of each row
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=target.device)
    ends = torch.tensor(sorted(pair.eos_ids), device=target.device)
    logits, _ = batch.start()
    for position in range(1, new_tokens + 1):
        token = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        for row, new in zip(rows[~finished].tolist(), token[~finished, 0].tolist(), strict=True):
            texts[row].append(new)
        finished |= torch.isin(token[:, 0], ends)
        if finished.all() or position == new_tokens:
            break
        if finished.float().mean() > 1 - COMPACT_BELOW:
            unfinished = (~finished).nonzero()[:, 0]
            batch.select(unfinished)
            rows, token, finished = rows[unfinished], token[unfinished], finished[unfinished]
        logits, _ = batch.forward(token)
    return [TargetText(text, len(prompt)) for text, prompt in zip(texts, prompts, strict=True)]


def padded(texts: Sequence[TargetText], device: torch.device) -> Tensor:
    """Return the tokens of texts ``[B, T]``, filled up with zeros."""
    return pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True).to(device)


@torch.no_grad()
def read_target(target: Runner, tokens: Tensor, layers: Sequence[int]) -> Tensor:
    """Return the target's final states and, along the last dimension, those after ``layers``."""
    length = tokens.shape[1]
    rotary, windows = target.tables(length)
    positions = torch.arange(length, device=tokens.device)[None]
    masks = {kind: visible(positions, length, window) for kind, window in windows.items()}
    return target.through_layers(tokens, None, angles_at(rotary, slice(0, length)), masks, layers)
