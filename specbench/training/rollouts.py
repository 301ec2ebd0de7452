"""Roll-outs: texts sampled from the verification distribution v, many at a time.

Both models read the same tokens in lockstep and each token is drawn from ``v = w p + (1 - w) q``
directly. That is the law speculative decoding emits, bonus tokens apart, at a fraction of the time.
Kept per token is what the loss needs and no more: what the head reads, and three scalars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.batch import Batch
from specbench.engine.loading import LoadedPair
from specbench.engine.prompts import encode
from specbench.example import Example
from specbench.heads.head import Head
from specbench.methods.verdict import Positions, pick
from specbench.tasks.task import Task

AT_ONCE = 128  # texts in a batch, as memory allows for an 8B target
COMPACT_BELOW = 0.8  # share of rows still going on at which the finished ones are dropped


class Rollouts(NamedTuple):
    """B sampled texts with M tokens in all, end tokens included.

    Attributes:
        texts: B texts.
        row: ``[M]`` which text a token belongs to.
        token: ``[M]`` the token.
        inputs: ``[M, D]`` what the head read before the token.
        p: ``[M]`` probability of the token under the target.
        q: ``[M]`` probability of the token under the draft.
        tv: ``[M]`` total variation between the two distributions there.
    """

    texts: list[str]
    row: Tensor
    token: Tensor
    inputs: Tensor
    p: Tensor
    q: Tensor
    tv: Tensor

    def cpu(self) -> Rollouts:
        """Return the same with its tensors in the memory of the CPU."""
        return Rollouts(self.texts, *(column.cpu() for column in self[1:]))


def read_prompts(
    pair: LoadedPair, task: Task, examples: Iterable[Example], limit: int
) -> list[list[int]]:
    """Return the tokens of the examples' prompts, as a run reads them.

    Args:
        pair: Loaded models.
        task: Says whether a prompt is a message or plain text.
        examples: The examples.
        limit: Longer prompts are cut inside their passage.

    Raises:
        UsageError: A prompt is over the limit and has no passage that may be cut.
    """
    return [
        encode(
            pair.tokenizer,
            example.prompt,
            passage=example.passage,
            prompt_format=task.prompt_format,
            limit=limit,
            thinking=pair.thinking,
        ).ids
        for example in examples
    ]


def roll_out(
    pair: LoadedPair,
    head: Head,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    generator: torch.Generator,
    copies: int = 1,
    stop: Sequence[str] = (),
) -> Rollouts:
    """Sample texts from v at temperature 1.

    Args:
        pair: Loaded models.
        head: Weighs target against draft.
        prompts: Their tokens, see ``read_prompts``; each is read once, whatever the number of
            copies.
        max_new_tokens: Limit on a text's tokens.
        generator: Source of the draws.
        copies: Texts per prompt; those of one prompt follow one another.
        stop: Strings that end a text where they appear. As in ``decode``, the token that completes
            one is the last, and the text is what stands before the string.
    """
    size = max(1, AT_ONCE // copies)
    return joined(
        [
            _batch(
                pair, head, prompts[start : start + size], max_new_tokens, generator, copies, stop
            )
            for start in range(0, len(prompts), size)
        ]
    )


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    """Put sets of texts one after the other."""
    if len(parts) == 1:
        return parts[0]
    texts = [text for part in parts for text in part.texts]
    offsets = accumulate((len(part.texts) for part in parts[:-1]), initial=0)
    row = torch.cat([part.row + offset for part, offset in zip(parts, offsets, strict=True)])
    columns = (torch.cat(column) for column in zip(*(part[2:] for part in parts), strict=True))
    return Rollouts(texts, row, *columns)


@torch.no_grad()
def _batch(
    pair: LoadedPair,
    head: Head,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    generator: torch.Generator,
    copies: int,
    stop: Sequence[str],
) -> Rollouts:
    """Sample texts side by side."""
    device = pair.target.device
    ends = torch.tensor(sorted(pair.eos_ids), device=device)
    rows = torch.arange(len(prompts), device=device).repeat_interleave(copies)
    models = [Batch(runner, prompts, max_new_tokens) for runner in (pair.target, pair.draft)]
    said = [model.start() for model in models]
    for model in models:
        model.select(rows)
    said = [(distribution[rows], hidden[rows]) for distribution, hidden in said]

    text = torch.arange(len(rows), device=device)  # that a row of the batch belongs to
    outputs: list[list[int]] = [[] for _ in range(len(rows))]  # kept for stop strings alone
    kept: list[tuple[Tensor, ...]] = []
    for remaining in reversed(range(max_new_tokens)):
        (p, h_p), (q, h_q) = said
        inputs = head.read(Positions(p, q, p, q, h_p, h_q, greedy=False))
        v = torch.lerp(q, p, head(inputs).unsqueeze(-1))
        token = torch.multinomial(v, 1, generator=generator).squeeze(-1)
        tv = (p - q).abs().sum(-1) / 2
        going = text >= 0
        columns = (text, token, inputs, pick(p, token), pick(q, token), tv)
        kept.append(tuple(column[going] for column in columns))
        over = torch.isin(token, ends)
        if stop:
            over |= _stopped(pair, outputs, text, token, stop)
        text = text.where(~over, -1)
        rows = (text >= 0).nonzero().squeeze(-1)
        if not remaining or not len(rows):
            break
        if len(rows) < COMPACT_BELOW * len(text):
            text, token = text[rows], token[rows]
            for model in models:
                model.select(rows)
        said = [model.read(token.unsqueeze(-1)) for model in models]

    text, token, *rest = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return Rollouts(_texts(pair, text, token, len(prompts) * copies, stop), text, token, *rest)


def _stopped(
    pair: LoadedPair, outputs: list[list[int]], text: Tensor, token: Tensor, stop: Sequence[str]
) -> Tensor:
    """Add a step's tokens to their outputs; return which rows hold a stop string by then.

    Args:
        pair: Has the tokenizer.
        outputs: Tokens of every text so far; extended in place.
        text: ``[B]`` text of a row, -1 where it is over.
        token: ``[B]`` new token of a row.
        stop: The strings.
    """
    found = []
    for number, spoken in zip(text.tolist(), token.tolist(), strict=True):
        said = ""
        if number >= 0:
            outputs[number].append(spoken)
            said = str(pair.tokenizer.decode(outputs[number]))
        found.append(any(string in said for string in stop))
    return torch.tensor(found, device=text.device)


def _texts(
    pair: LoadedPair, row: Tensor, token: Tensor, count: int, stop: Sequence[str]
) -> list[str]:
    """Decode every text without its end token, up to a stop string."""
    outputs: list[list[int]] = [[] for _ in range(count)]
    for text, spoken in zip(row.tolist(), token.tolist(), strict=True):
        if spoken not in pair.eos_ids:
            outputs[text].append(spoken)
    texts = list(pair.tokenizer.batch_decode(outputs, skip_special_tokens=True))
    for string in stop:
        texts = [text.split(string, 1)[0] for text in texts]
    return texts
