"""From a sample's record to its tokens, each with what became of it.

A round's tokens are those drafted and accepted and then, unless the text ended before, one from the
target: the correction of a rejected draft, or the bonus where all were accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specbench.errors import UsageError

AGREED = "agreed"  # drafted, accepted, and what the target finds likeliest
MISMATCH = "mismatch"  # drafted and accepted, though the target finds another token likeliest
REJECTED = "rejected"  # drafted, but no part of the text
CORRECTION = "correction"  # from the target, in the place of a rejected one
TARGET = "target"  # from the target, after a round without a rejection

_COUNTS = ("proposed", "accepted", "emitted", "rejected", "agreed", "expected", "weights")


class Token(NamedTuple):
    """A token that was drafted or emitted.

    Attributes:
        id: Its id; None for the end token, which a record does not name.
        kind: What became of it.
        round: Its round, from 1.
        expected: Probability, before drawing, that the draft at its position is accepted.
        weight: Weight on the target there, for methods with one.
    """

    id: int | None
    kind: str
    round: int
    expected: float | None = None
    weight: float | None = None


class Unreadable(Exception):
    """A record whose rounds do not make its text; the message says why."""


def tokens(record: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of a sample in their order, a rejected one before its correction.

    Args:
        record: A line of ``samples.jsonl``.

    Raises:
        UsageError: Its run did not record the rejected tokens.
        Unreadable: Its rounds do not add up to its tokens.
    """
    rounds = record["per_round"]
    if missing := [name for name in _COUNTS if name not in rounds]:
        raise UsageError(f"the samples lack per_round.{missing[0]}: run again")
    ids: list[int | None] = list(record["token_ids"])
    if sum(rounds["emitted"]) == len(ids) + 1:
        ids.append(None)
    if sum(rounds["emitted"]) != len(ids):
        raise Unreadable("its rounds do not add up to its tokens")
    try:
        return list(_rounds(iter(ids), zip(*(rounds[name] for name in _COUNTS), strict=True)))
    except (ValueError, RuntimeError) as error:  # zip's, or of an iterator that ends too soon
        raise Unreadable("the lists of its rounds do not fit together") from error


def _rounds(ids: Iterator[int | None], rounds: Iterator[tuple[Any, ...]]) -> Iterator[Token]:
    for number, (_, accepted, emitted, rejected, agreed, expected, weights) in enumerate(
        rounds, start=1
    ):
        for place, likeliest in zip(range(accepted), agreed, strict=True):
            kind = AGREED if likeliest else MISMATCH
            yield Token(next(ids), kind, number, _at(expected, place), _at(weights, place))
        judged = _at(expected, accepted), _at(weights, accepted)
        if rejected is not None:
            yield Token(rejected, REJECTED, number, *judged)
        if emitted > accepted:
            yield Token(next(ids), TARGET if rejected is None else CORRECTION, number, *judged)


def _at(values: Sequence[float], place: int) -> float | None:
    """The value at a place; None after the last, where nothing was judged."""
    return values[place] if place < len(values) else None
