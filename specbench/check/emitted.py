"""Sampled texts taken apart: where every token came from, as the loop's records say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.records import Generation

ACCEPTED, CORRECTED, OWN = range(3)
"""A token is an accepted draft, stands for a rejected one, or is the target's own: the bonus token,
or with N = 0 any."""


class Emitted(NamedTuple):
    """The tokens of K texts of T tokens, ``[K, T]`` each."""

    tokens: Tensor
    kind: Tensor
    drafted: Tensor  # what was judged at this position; 0 where nothing was
    place: Tensor  # in its round, from 0
    expected: Tensor  # acceptance probability as reported; NaN where nothing was judged
    weight: Tensor  # the same of the weight on the target


class _Token(NamedTuple):
    token: int
    kind: int
    drafted: int
    place: int
    expected: float
    weight: float


def emitted(generations: Sequence[Generation]) -> Emitted:
    """Take texts apart that are of one length and were ended by it."""
    rows = [list(_tokens(generation)) for generation in generations]
    columns = (torch.tensor([[token[i] for token in row] for row in rows]) for i in range(6))
    return Emitted(*columns)


def _tokens(generation: Generation) -> Iterator[_Token]:
    remaining = iter(generation.token_ids)
    for record in generation.rounds:
        for place in range(record.emitted):
            token = next(remaining)
            if place >= record.accepted and record.rejected is None:
                yield _Token(token, OWN, 0, place, nan, nan)
                continue
            accepted = place < record.accepted
            drafted = token if accepted else record.rejected
            assert drafted is not None
            yield _Token(
                token,
                ACCEPTED if accepted else CORRECTED,
                drafted,
                place,
                record.expected[place],
                record.weights[place] if record.weights else nan,
            )
