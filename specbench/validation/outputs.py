"""Whole outputs: how each one must end, and their law, enumerated with plain passes.

A rule whose drafts are judged together has no law of the next token alone: whether a draft is
accepted depends on those after it. A round of such a rule is enumerated instead: all N drafts that
have mass under q, and for each of them all ways in which single drafts pass or fail. That is
feasible where q has few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.records import Generation, StopReason
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.methods.laws import normalised
from specbench.validation.laws import farther, laws_at
from specbench.validation.texts import DRAWN, NOTHING, Context, Ends, Setup, decode_one, laws_along

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
    drafted = x.ne(NOTHING).sum(-1, keepdim=True)
    last = torch.arange(n) + max(size, min(bound or 0, n))
    windows = [flags[:, i + 1 : i + 1 + size].all(-1) for i in range(n)]
    may: Tensor = unsure & (last.to(x.device) < drafted)
    return flags | may[:, None] & torch.stack(windows, -1)


BLOCKS: dict[str, Accepts] = {"fly": fly}
"""Rules whose law is that of a round's drafts together, by name."""


class RoundsAfter(NamedTuple):
    """All rounds after a text, by their M drafts."""

    drafts: Tensor  # [M, N], NOTHING where none is proposed
    mass: Tensor  # [M] of these drafts under q
    reached: Tensor  # [M, N + 1] probability that at least so many of them are accepted
    p: Tensor  # [M, N + 1, V]
    q: Tensor  # [M, N + 1, V]


def next_by_rounds(setup: Setup, context: Context) -> NextToken:
    """Return the laws of the tokens after outputs, see ``NextToken``, by whole rounds."""
    rounds_after = cache(lambda output: _rounds(setup, [*context.prompt, *output]))

    def next_token(states: Sequence[Beginning]) -> LawsAfter:
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


def _rounds(setup: Setup, text: Sequence[int]) -> RoundsAfter:
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
    p, q = _laws(setup, text, blocks, proposed)
    chosen = drafts.clamp_min(0)[..., None]
    p_x, q_x = (law[:, :n].gather(-1, chosen)[..., 0] for law in (p, q))
    strict = torch.where(q_x > 0, p_x / q_x, 0).clamp_max(1)
    flags = torch.cartesian_prod(*[torch.tensor([False, True])] * n).view(-1, n).to(drafts.device)
    ways = torch.where(flags, strict[:, None], 1 - strict[:, None]).prod(-1)  # [M, F]
    accepts = BLOCKS[setup.method.method](flags, p[:, :n], drafts, **dict(setup.method.parameters))
    passed = accepts.cumprod(-1)
    reached = torch.cat((ways.sum(-1, True), (ways[..., None] * passed).sum(1)), -1)
    drawn = torch.where(drafts == NOTHING, 1, q_x)
    return RoundsAfter(drafts, drawn.prod(-1), reached, p, q)


def _laws(
    setup: Setup, text: Sequence[int], blocks: Sequence[list[int]], proposed: list[int]
) -> tuple[Tensor, Tensor]:
    """Return p and q after a text and each beginning of blocks."""
    size = len(blocks[0]) + 1
    whole = [[*text, *(max(token, 0) for token in block), 0] for block in blocks]
    positions = torch.arange(size).expand(len(blocks), size)
    expected = torch.tensor([*proposed, NOTHING])[:size].repeat(len(blocks))
    at = laws_at(setup, whole, positions, expected.to(setup.pair.target.device)).at
    return at.p.view(len(blocks), size, -1), at.q.view(len(blocks), size, -1)


RARE = 4.0  # beginnings of outputs that are expected less often are not enumerated further
CANDIDATES = 10  # tokens for a stop string that about half of the outputs contain
READABLE = 2  # least characters of a stop string, if tokens have so many
Output = tuple[int, ...]  # tokens, with the end token
LawsAfter = tuple[Tensor, Tensor, Tensor, Tensor]
NextToken = Callable[[Sequence[Beginning]], LawsAfter]
"""Returns the law of the token after each beginning in two parts ``[K, V]``: of a draft that is
accepted, and of a token that ends the round; and p and q, one of which is the wrong law."""


class OutputLaw(NamedTuple):
    """The law of a prompt's outputs; an output belongs to the cell of its longest listed part."""

    law: Tensor  # [C + 1] probability of each cell; the last one is impossible
    wrong: Tensor  # [C + 1] the same under the wrong law
    cells: dict[Output, dict[int, int]]  # beginning -> cell of each token that may follow it

    def cell(self, output: Output) -> int:
        """Return the cell of an output; the impossible one if it ends where it must go on."""
        for depth in range(len(output)):
            if output[: depth + 1] not in self.cells:
                return self.cells[output[:depth]].get(output[depth], len(self.law) - 1)
        return len(self.law) - 1


def choose_ends(
    pair: LoadedPair, contexts: Sequence[Context], sampling: Sampling, limit: int
) -> Ends:
    """Choose an end token and a stop string that outputs often have as an accepted draft.

    They replace the pair's end tokens, which such short outputs would hardly ever reach.
    """
    mean: Tensor | float = 0.0
    for context in contexts:
        text = [*context.prompt, *decode_one(pair, context, limit).token_ids, 0]
        last = len(text) - len(context.prompt)
        p = laws_along(pair.target, text, last, sampling)
        q = laws_along(pair.draft, text, last, sampling)
        mean = mean + torch.minimum(p, q).mean(0)  # if both propose it, it ends texts inside drafts
    assert isinstance(mean, Tensor)
    expected = limit * mean / len(contexts)  # accepted drafts of each token in an output
    end = int(expected.argmax())
    expected[end] = 0
    likely = (expected - 0.5).abs().argsort(stable=True)[:CANDIDATES].tolist()
    spelled = [str(pair.tokenizer.decode([token])).strip() for token in likely]
    longest = [text for text in spelled if len(text) >= READABLE] or [*filter(None, spelled)]
    return Ends(limit, end, longest[0] if longest else "")


def stop_reason(pair: LoadedPair, ends: Ends, output: Sequence[int]) -> StopReason | None:
    """Return why an output of these tokens must end; None if it must go on."""
    if output[-1] == ends.token:
        return "eos"
    if ends.stop and ends.stop in pair.tokenizer.decode(list(output)):
        return "stop"
    return "length" if len(output) >= ends.limit else None


def ends_rightly(pair: LoadedPair, ends: Ends, generation: Generation) -> bool:
    """Return whether an output ends where it must, for this reason and with this text."""
    ids, reason = generation.token_ids, generation.stopped_by
    output = ends.output(generation)
    text = pair.text_of(ids)
    expected = text.split(ends.stop, 1)[0] if ends.stop else text
    reasons = [stop_reason(pair, ends, output[: i + 1]) for i in range(len(output))]
    counts = len(output) == generation.output_tokens == sum(r.emitted for r in generation.rounds)
    return (
        reasons == [None] * (len(output) - 1) + [reason] and counts and generation.text == expected
    )


def enumerate_outputs(
    next_token: NextToken, least: float, goes_on: Callable[[Output], bool]
) -> OutputLaw:
    """Return the law of a prompt's outputs, as far as their beginnings are likely.

    Beginnings with at least the probability ``least`` that ``goes_on`` allows are followed further.
    """
    probabilities: list[Tensor] = []
    wrong_ones: list[Tensor] = []
    cells: dict[Output, dict[int, int]] = {}
    # Beginning of an output -> probability of each position in the round that the next token has.
    level: dict[Output, dict[int, float]] = {(): {0: 1.0}}
    wrong_mass: dict[Output, float] = {(): 1.0}
    while level:
        states = [(output, position) for output, part in level.items() for position in part]
        accepted, replaced, p, q = next_token(states)
        deeper: dict[Output, dict[int, float]] = {}
        rows = iter(range(len(states)))
        for output, positions in level.items():
            state_rows = list(islice(rows, len(positions)))
            mass = accepted.new_tensor(list(positions.values()))[:, None]
            going_on, restarting = mass * accepted[state_rows], mass * replaced[state_rows]
            law = (going_on + restarting).sum(0)
            start = state_rows[0]
            wrong = wrong_mass[output] * farther(law / law.sum(), p[start], q[start])
            for token in (law >= least).nonzero()[:, 0].tolist():
                if not goes_on(longer := (*output, token)):
                    continue
                wrong_mass[longer] = float(wrong[token])
                following = {i + 1: float(going_on[row, token]) for row, i in enumerate(positions)}
                following[0] = float(restarting[:, token].sum())
                deeper[longer] = {i: mass for i, mass in following.items() if mass > 0}
                law[token] = wrong[token] = 0
            possible = ((law > 0) | (wrong > 0)).nonzero()[:, 0]
            first = sum(len(part) for part in probabilities)
            cells[output] = {token: first + i for i, token in enumerate(possible.tolist())}
            probabilities.append(law[possible])
            wrong_ones.append(wrong[possible])
        level = deeper
    impossible = [accepted.new_zeros(1)]
    return OutputLaw(
        torch.cat(probabilities + impossible), torch.cat(wrong_ones + impossible), cells
    )


def next_token(setup: Setup, context: Context, states: Sequence[Beginning]) -> LawsAfter:
    """Return the laws of the tokens after outputs, see ``NextToken``, by plain passes."""
    texts = [[*context.prompt, *output] for output, _ in states]
    drafts = []
    for text, (_, position) in zip(texts, states, strict=True):
        copied = setup.propose(text[: len(text) - position])
        drafts.append(copied[position] if position < len(copied) else NOTHING)
    proposed = torch.tensor(drafts, device=setup.pair.target.device)
    positions = torch.tensor([[position] for _, position in states])
    laws = laws_at(setup, [[*text, 0] for text in texts], positions, proposed)
    assert laws.split is not None
    bonus = (proposed == NOTHING)[:, None]
    accepted = torch.where(bonus, 0, laws.split.accepted)
    replaced = torch.where(bonus, laws.at.p, laws.split.replaced)
    return accepted, replaced, laws.at.p, laws.at.q


def outputs_of(
    setup: Setup, context: Context, generations: Sequence[Generation]
) -> tuple[OutputLaw, Tensor]:
    """Return the enumerated law of a prompt's outputs, and the cell ``[K]`` of each of them.

    Of texts that are not whole outputs, these are only the first tokens.
    """
    ends = setup.ends if setup.ends.whole else Ends(limit=1)
    by_rounds = setup.method.method in BLOCKS
    law = enumerate_outputs(
        next_by_rounds(setup, context) if by_rounds else partial(next_token, setup, context),
        RARE / len(generations),
        lambda output: stop_reason(setup.pair, ends, output) is None,
    )
    outputs = [tuple(ends.output(text)[: ends.limit]) for text in generations]
    return law, torch.tensor([law.cell(output) for output in outputs])
