"""Roll-outs by speculative decoding, with any drafter and the draft length of a run.

A module that drafts reads the target's states at the first draft of a round, and its own at the
others, so its q depends on the depth in the round. Texts are therefore drawn round by round, as in
a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.config import DRAFT_LENGTH
from specbench.decoding.drafting import Drafter
from specbench.decoding.heads.head import Head
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.methods import Positions, Verdict
from specbench.methods.ensembles import static
from specbench.methods.laws import Next, Split
from specbench.training.rollouts import AT_ONCE, Rollouts, joined, weights_of


def drafted_rollouts(
    pair: LoadedPair,
    heads: Sequence[Head],
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    generator: torch.Generator,
    stop: Sequence[str],
    sampling: Sampling,
    drafter: Drafter,
) -> Rollouts:
    """Sample a text per prompt and head as ``roll_out``, in rounds of ``DRAFT_LENGTH`` drafts.

    Bonus tokens of the texts are left out: they come from p, whatever the weights are.
    """
    size = max(1, AT_ONCE // len(heads))
    parts = []
    for first in range(0, len(prompts), size):
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        rows = [prompt for prompt in prompts[first : first + size] for _ in heads]
        options = DecodeOptions(
            sampling, DRAFT_LENGTH, max_new_tokens, seed, stop, len(rows), drafter, law=_draft_law
        )
        parts.append(_decoded(pair, heads, rows, options))
    return joined(parts)


def _decoded(
    pair: LoadedPair, heads: Sequence[Head], prompts: list[list[int]], options: DecodeOptions
) -> Rollouts:
    """Decode all texts in one batch; a text keeps its row, so its rounds are those of the batch."""
    row_of_draft = torch.arange(len(prompts), device=pair.target.device)
    row_of_draft = row_of_draft.repeat_interleave(options.draft_length)
    rounds: list[tuple[Tensor, Tensor]] = []  # head inputs [B, N, D] and TV [B, N]

    def verified(at: Positions, x: Tensor) -> Verdict:
        inputs, tv = heads[0].inputs(at), (at.p - at.q).abs().sum(-1) / 2
        rounds.append((inputs.unflatten(0, (len(prompts), -1)), tv.view(len(prompts), -1)))
        return static(at, x, weight=weights_of(heads, inputs, row_of_draft))

    requests = [Request(prompt, str(row)) for row, prompt in enumerate(prompts)]
    generations = dict(decode_all(pair, verified, requests, options))
    texts, columns = [], []
    for row in range(len(prompts)):
        text = generations[row]
        texts.append(text.text)
        tokens, first = torch.tensor([*text.token_ids, *pair.eos_ids]), 0
        for record, (inputs, tv) in zip(text.rounds, rounds, strict=False):
            drafted = len(record.expected)  # without the bonus token
            log_p, log_q = torch.tensor(record.laws[:drafted], dtype=torch.float64).T
            token, distances = tokens[first : first + drafted], tv[row, :drafted]
            scalars = (log_p.exp().to(distances), log_q.exp().to(distances), distances)
            columns.append((torch.full_like(token, row), token, inputs[row, :drafted], *scalars))
            first += record.emitted
    index, token, *others = (torch.cat(parts) for parts in zip(*columns, strict=True))
    return Rollouts(texts, index.to(row_of_draft), token.to(row_of_draft), *others)


def _draft_law(at: Next, weight: Tensor | None) -> Split:
    """Return q, whose logarithm is thereby recorded for every token beside that of p."""
    return Split(at.q, torch.zeros_like(at.q))
