"""Roll-outs: many texts sampled together from the verification distribution v.

Both models run the same tokens in lockstep, and each token is drawn directly from
``v = w p + (1 - w) q``, with p and q after temperature, top-k, top-p and min-p. Except for bonus
tokens, this is the distribution of speculative decoding, at a fraction of the time. Per token, only
the head's input and three scalars are kept for the loss.

A module that drafts reads the target's states at the first draft of a round, and its own at the
others, so its q depends on the depth in the round. With such a drafter, texts are therefore drawn
round by round, with the draft length of a run (``drafted_rollouts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.config import DRAFT_LENGTH
from specbench.decoding.drafting import Drafter, context_of
from specbench.decoding.heads.head import Head
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.sampling import Sampling, draw
from specbench.engine.lockstep import lockstep
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.methods.ensembles import static
from specbench.methods.laws import Next, Split
from specbench.methods.verdict import Positions, Verdict, pick
from specbench.tasks.thoughts import answer_in, begins_thoughts

AT_ONCE = 128  # texts in a batch; fits in memory with an 8B target
PLAIN = Sampling()  # the models' own distributions
COMPACT_BELOW = 0.8  # drop finished rows once the fraction of active ones is below this


class Rollouts(NamedTuple):
    """B sampled texts with M tokens in total, including end tokens."""

    texts: list[str]  # B answers, without thoughts
    cut: list[bool]  # whether the limit on tokens cut the text
    row: Tensor  # `[M]` index of the token's text
    token: Tensor  # `[M]` the token
    inputs: Tensor  # `[M, D]` input of the head before the token
    p: Tensor  # `[M]` probability of the token under the target
    q: Tensor  # `[M]` probability of the token under the draft
    tv: Tensor  # `[M]` total variation between the distributions at the token

    def taken(self, texts: range) -> Rollouts:
        """Return some of the texts."""
        place = self.row - texts.start
        chosen = (place >= 0) & (self.row < texts.stop) & (place % texts.step == 0)
        columns = (column[chosen] for column in self[3:])
        part = slice(texts.start, texts.stop, texts.step)
        return Rollouts(self.texts[part], self.cut[part], place[chosen] // texts.step, *columns)

    def likelihood(self, weight: Tensor) -> Tensor:
        """Return the probability of each token under v with these weights, both ``[M]``."""
        return torch.lerp(self.q, self.p, weight)


class RolloutRequest(NamedTuple):
    """Texts that share batches with those of other requests: one per prompt and head."""

    heads: Sequence[Head]  # of one kind in all requests; a head may occur repeatedly
    prompts: Sequence[list[int]]
    generator: torch.Generator  # draws the tokens of this request only

    @property
    def texts(self) -> int:
        """The number of texts."""
        return len(self.heads) * len(self.prompts)

    def draws(self, tokens: int) -> Tensor:
        """Draw numbers in [0, 1) ``[tokens, texts]``, at once: no other request changes them."""
        size, device = (tokens, self.texts), self.generator.device
        return torch.rand(size, generator=self.generator, device=device, dtype=torch.float64)

    def divided(self) -> list[RolloutRequest]:
        """Return requests of at most ``AT_ONCE`` texts, or of one prompt."""
        size = max(1, AT_ONCE // len(self.heads))
        starts = range(0, len(self.prompts), size)
        return [self._replace(prompts=self.prompts[i : i + size]) for i in starts]


def roll_out(
    pair: LoadedPair,
    requests: Sequence[RolloutRequest],
    max_new_tokens: int,
    stop: Sequence[str] = (),
    sampling: Sampling = PLAIN,
) -> list[Rollouts]:
    """Sample the texts of all requests from v; the texts of a prompt are adjacent.

    A request gets the texts that it would get alone, but for rounding. The models read a prompt of
    a request once for all heads. A ``stop`` string ends a text: the token that completes it is the
    last, and the text is cut before the string.
    """
    batches: list[dict[int, RolloutRequest]] = []  # by the number of the request they belong to
    for number, request in enumerate(requests):
        for piece in request.divided():
            if not batches or sum(p.texts for p in batches[-1].values()) + piece.texts > AT_ONCE:
                batches.append({})
            batches[-1][number] = piece
    written: list[list[Rollouts]] = [[] for _ in requests]
    for batch in batches:
        texts, end = _batch(pair, [*batch.values()], max_new_tokens, stop, sampling), 0
        for number, piece in batch.items():
            first, end = end, end + piece.texts
            written[number].append(texts.taken(range(first, end)))
    return [joined(pieces) for pieces in written]


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    """Return the texts of several roll-outs, in this order, as one."""
    texts, cut = ([*chain.from_iterable(lists)] for lists in list(zip(*parts, strict=True))[:2])
    offsets = accumulate((len(part.texts) for part in parts[:-1]), initial=0)
    row = torch.cat([part.row + offset for part, offset in zip(parts, offsets, strict=True)])
    columns = (torch.cat(column) for column in zip(*(part[3:] for part in parts), strict=True))
    return Rollouts(texts, cut, row, *columns)


@torch.no_grad()
def _batch(
    pair: LoadedPair,
    requests: Sequence[RolloutRequest],
    max_new_tokens: int,
    stop: Sequence[str],
    sampling: Sampling,
) -> Rollouts:
    device = pair.target.device
    ends = torch.tensor(sorted(pair.eos_ids), device=device)
    prompts = [prompt for request in requests for prompt in request.prompts]
    writers = [head for request in requests for _ in request.prompts for head in request.heads]
    counts = [len(request.heads) for request in requests for _ in request.prompts]
    rows = torch.arange(len(prompts)).repeat_interleave(torch.tensor(counts)).to(device)
    prompt_of, heads = rows.tolist(), [*dict.fromkeys(writers)]
    head_of = torch.tensor([heads.index(head) for head in writers], device=device)
    uniform = torch.cat([request.draws(max_new_tokens) for request in requests], 1)
    models = lockstep(pair, prompts, max_new_tokens, len(rows))
    outputs = [model.start() for model in models]
    for model in models:
        model.select(rows)
    outputs = [(logits[rows], hidden[rows]) for logits, hidden in outputs]

    text = torch.arange(len(rows), device=device)  # index of each row's text, -1 once it has ended
    written: list[list[int]] = [[] for _ in range(len(rows))]  # used for stop strings only
    steps: list[tuple[Tensor, ...]] = []
    for position in range(max_new_tokens):
        (logits_p, h_p), (logits_q, h_q) = outputs
        (p, p1), (q, q1) = sampling.distributions(logits_p), sampling.distributions(logits_q)
        inputs = writers[0].inputs(Positions(p, q, p1, q1, h_p, h_q, sampling.greedy))
        v = torch.lerp(q, p, weights_of(heads, inputs, head_of[text]).unsqueeze(-1))
        token = draw(v, uniform[position, text])
        tv = (p - q).abs_().sum(-1) / 2
        active = text >= 0
        columns = (text, token, inputs, pick(p, token), pick(q, token), tv)
        steps.append(tuple(column[active] for column in columns))
        over = torch.isin(token, ends)
        if stop:
            over |= _stopped(pair, written, text, token, stop)
        text = text.where(~over, -1)
        rows = (text >= 0).nonzero().squeeze(-1)
        if position + 1 == max_new_tokens or not len(rows):
            break
        if len(rows) < COMPACT_BELOW * len(text):
            text, token = text[rows], token[rows]
            for model in models:
                model.select(rows)
        outputs = [model.forward(token.unsqueeze(-1)) for model in models]

    unfinished = {*text.tolist()}
    text, token, *records = (torch.cat(parts) for parts in zip(*steps, strict=True))
    token_ids: list[list[int]] = [[] for _ in writers]
    for number, token_id in zip(text.tolist(), token.tolist(), strict=True):
        if token_id not in pair.eos_ids:
            token_ids[number].append(token_id)
    answers = [
        _answer(pair, prompts[prompt_of[number]], pair.text_of(ids, stop))
        for number, ids in enumerate(token_ids)
    ]
    cut = [number in unfinished for number in range(len(answers))]
    return Rollouts(answers, cut, text, token, *records)


def weights_of(heads: Sequence[Head], inputs: Tensor, head_of: Tensor) -> Tensor:
    """Return the weight on the target ``[B]`` by the head of each row, an index ``[B]``."""
    return torch.stack([head(inputs) for head in heads]).gather(0, head_of[None]).squeeze(0)


def _stopped(
    pair: LoadedPair, written: list[list[int]], text: Tensor, token: Tensor, stop: Sequence[str]
) -> Tensor:
    """Append a step's tokens ``[B]`` to their texts; return which texts have a stop string."""
    ended = []
    for number, new in zip(text.tolist(), token.tolist(), strict=True):
        so_far = ""
        if number >= 0:
            written[number].append(new)
            so_far = str(pair.tokenizer.decode(written[number]))
        ended.append(any(string in so_far for string in stop))
    return torch.tensor(ended, device=text.device)


def _answer(pair: LoadedPair, prompt: Sequence[int], text: str) -> str:
    """Return the part of a text that a run scores."""
    return answer_in(text, begun=begins_thoughts(pair.tokenizer, prompt))


def drafted_rollouts(
    pair: LoadedPair,
    request: RolloutRequest,
    max_new_tokens: int,
    stop: Sequence[str],
    sampling: Sampling,
    drafter: Drafter,
) -> Rollouts:
    """Sample a text per prompt and head as ``roll_out``, in rounds of ``DRAFT_LENGTH`` drafts.

    Bonus tokens of the texts are left out: they come from p, whatever the weights are.
    """
    context, longest = context_of(drafter, pair), max(map(len, request.prompts))
    if context is not None and longest + max_new_tokens > context:
        raise UsageError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed the {context} "
            "tokens that the drafter can read: lower --max-prompt-tokens or --max-new-tokens"
        )
    written, generator = [], request.generator
    for piece in request.divided():
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        rows = [prompt for prompt in piece.prompts for _ in request.heads]
        options = DecodeOptions(
            sampling, DRAFT_LENGTH, max_new_tokens, seed, stop, len(rows), drafter, law=_draft_law
        )
        written.append(_decoded(pair, request.heads, rows, options))
    return joined(written)


def _decoded(
    pair: LoadedPair, heads: Sequence[Head], prompts: list[list[int]], options: DecodeOptions
) -> Rollouts:
    """Decode all texts in one batch; a text keeps its row, so its rounds are those of the batch."""
    n, device = options.draft_length, pair.target.device
    judged: list[tuple[Tensor, Tensor]] = []  # head inputs [_, D] and TV [_] of all drafts in turn
    number = 0  # of drafts so far

    def verified(at: Positions, x: Tensor) -> Verdict:
        nonlocal number
        inputs, tv = heads[0].inputs(at), (at.p - at.q).abs_().sum(-1) / 2
        judged.append((inputs, tv))
        text = torch.arange(number, number + len(x), device=device) // n % len(prompts)
        number += len(x)
        return static(at, x, weight=weights_of(heads, inputs, text % len(heads)))

    requests = [Request(prompt, str(row)) for row, prompt in enumerate(prompts)]
    generations = dict(decode_all(pair, verified, requests, options))
    # [rounds, B, N, D] and [rounds, B, N]; few texts may be verified at once
    inputs, tv = (
        torch.cat(columns).unflatten(0, (-1, len(prompts), n))
        for columns in zip(*judged, strict=True)
    )
    answers, cut, columns = [], [], []
    for row, prompt in enumerate(prompts):
        text = generations[row]
        answers.append(_answer(pair, prompt, text.text))
        cut.append(text.stopped_by == "length")
        tokens, first = torch.tensor([*text.token_ids, *pair.eos_ids]), 0
        for record, *of_round in zip(text.rounds, inputs[:, row], tv[:, row], strict=False):
            drafted = len(record.expected)  # without the bonus token
            log_p, log_q = torch.tensor(record.laws[:drafted], dtype=torch.float64).T
            token = tokens[first : first + drafted]
            features, distances = (values[:drafted] for values in of_round)
            scalars = (log_p.exp().to(distances), log_q.exp().to(distances), distances)
            columns.append((torch.full_like(token, row), token, features, *scalars))
            first += record.emitted
    index, token, *records = (torch.cat(column) for column in zip(*columns, strict=True))
    return Rollouts(answers, cut, index.to(device), token.to(device), *records)


def _draft_law(at: Next, weight: Tensor | None) -> Split:
    """Return q, whose logarithm is thereby recorded for every token beside that of p."""
    return Split(at.q, torch.zeros_like(at.q))
