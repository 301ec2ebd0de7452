"""Whole outputs: how each one must end, and their law, enumerated with plain passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.records import Generation, StopReason
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.validation.blocks import BLOCKS, Beginning, next_by_rounds
from specbench.validation.laws import farther, laws_at
from specbench.validation.passes import laws_along
from specbench.validation.texts import NOTHING, Context, Ends, Setup, decode_one

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
    text = str(pair.tokenizer.decode(ids, skip_special_tokens=True))
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

    Args:
        next_token: The laws of the tokens after beginnings.
        least: The probability of a beginning from which on it is enumerated further.
        goes_on: Whether a beginning may be followed by another token.
    """
    probabilities: list[Tensor] = []
    wrong_ones: list[Tensor] = []
    cells: dict[Output, dict[int, int]] = {}
    # Beginning of an output -> probability of each position in the round that the next token has.
    level: dict[Output, dict[int, float]] = {(): {0: 1.0}}
    wrong_mass: dict[Output, float] = {(): 1.0}
    while level:
        states = [
            (output, position) for output, positions in level.items() for position in positions
        ]
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
                following = {
                    position + 1: float(going_on[row, token])
                    for row, position in enumerate(positions)
                }
                following[0] = float(restarting[:, token].sum())
                deeper[longer] = {
                    position: mass for position, mass in following.items() if mass > 0
                }
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
    accepted = torch.where(bonus, 0, laws.split.kept)
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
