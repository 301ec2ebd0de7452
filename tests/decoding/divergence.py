"""Greedy texts of two engines up to their first difference, which must be a tie.

On a GPU the rounding of a pass depends on its shape and its kernels. Where the two largest logits
of a model nearly coincide, two correct engines may choose different tokens, and everything after it
differs.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from specbench.decoding.loop import Request
from specbench.decoding.records import Generation, RoundRecord
from specbench.engine.pair import LoadedPair
from specbench.engine.passes import plain_pass
from specbench.validation.greedy import TIE


class Divergence(NamedTuple):
    """The first round that differs."""

    position: int  # new tokens before it
    margin: float  # least margin between the two largest logits, of either model in that round


def divergence(
    pair: LoadedPair, prompt: Sequence[int], one: Generation, other: Generation
) -> Divergence | None:
    """Describe the first round of two greedy texts that differs; None if there is none."""
    start = 0
    for mine, theirs in zip(one.rounds, other.rounds, strict=False):
        rounds = [
            (_counts(record), text.token_ids[start : start + record.emitted])
            for record, text in ((mine, one), (theirs, other))
        ]
        if rounds[0] != rounds[1]:
            break
        start += mine.emitted
    else:
        return None
    both = zip(rounds[0][1], rounds[1][1], strict=False)
    common = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
    text = [*prompt, *one.token_ids[:start], *common, 0]
    best = [
        plain_pass(model, [text], last=len(common) + 1).logits[0].topk(2, -1).values
        for model in pair.runners
    ]
    return Divergence(start, min(float((two[:, 0] - two[:, 1]).min()) for two in best))


def require_equal_up_to_ties(
    pair: LoadedPair,
    requests: Sequence[Request],
    expected: Sequence[Generation],
    found: Sequence[Generation],
) -> None:
    """Fail unless greedy texts are equal up to ties; print each tie (``pytest -rP``)."""
    for request, one, other in zip(requests, expected, found, strict=True):
        if (first := divergence(pair, request.prompt, one, other)) is not None:
            print(f"{request.key}: {first}")
            assert first.margin <= TIE, f"{request.key} differs, and not by a tie: {first}"


def _counts(record: RoundRecord) -> tuple[int, int, int]:
    return record.proposed, record.accepted, record.emitted
