"""From a sample's record to its tokens with their fates, and from tokens to pieces of text.

The tokens of a round are those drafted and accepted and then, unless the text ended before, one
from the target: the correction of a rejected draft, or the bonus token where all were accepted.

A byte-level tokenizer may spread one character over several tokens, and some tokenizers write a
token differently at the start of a text. So tokens are decoded together with those before them, and
tokens that complete no character wait for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specbench.errors import UsageError

Decode = Callable[[Sequence[int]], str]

AGREED = "agreed"  # drafted, accepted, and the target's likeliest token
MISMATCH = "mismatch"  # drafted and accepted, but not the target's likeliest token
REJECTED = "rejected"  # drafted, but not part of the text
CORRECTION = "correction"  # from the target, in the place of a rejected one
TARGET = "target"  # from the target, after a round without a rejection
END = "⟨end⟩"

_COUNTS = ("proposed", "accepted", "emitted", "rejected", "agreed", "expected", "weights")
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_PICTURES |= dict.fromkeys(range(0x7F, 0xA0), ord("\N{SYMBOL FOR DELETE}"))
_PRECEDENCE = (MISMATCH, CORRECTION, TARGET, AGREED)  # of tokens that share a character


class Token(NamedTuple):
    """A token that was drafted or emitted."""

    id: int | None  # None for the end token, which a record does not name
    kind: str  # its fate
    round: int  # from 1
    expected: float | None = None  # probability that the draft at its position is accepted
    weight: float | None = None  # on the target there, for methods with one


class Piece(NamedTuple):
    """The text of a token, or of several that make a character; the rest is as in ``Token``."""

    text: str
    kind: str
    round: int
    expected: float | None
    weight: float | None


class Unreadable(Exception):
    """A record whose rounds do not make its text; the message says why."""


def tokens(record: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of a sample in their order, a rejected one before its correction.

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


def pieces(tokens: Iterable[Token], decode: Decode) -> Iterator[Piece]:
    """Yield the text of each token; those that are not rejected add up to the whole text."""
    ids: list[int] = []
    context = written = 0  # ids[context:written] came last, and affect how the next are written
    waiting: list[Token] = []
    for token in tokens:
        if token.id is None:
            break
        if token.kind == REJECTED:
            tried = [*ids[written:], token.id]
            yield _piece([token], _after(ids[context:written], tried, decode))
            continue
        ids.append(token.id)
        waiting.append(token)
        text = _after(ids[context:written], ids[written:], decode)
        if not text.endswith(_BROKEN):
            yield _piece(waiting, text)
            context, written, waiting = written, len(ids), []
    if waiting:
        yield _piece(waiting, _after(ids[context:written], ids[written:], decode))
    yield from (_piece([token], END) for token in tokens if token.id is None)


def visible(text: str, *, marked: bool = False, rejected: bool = False) -> str:
    """Return a text that is safe to show: control characters become pictures of themselves.

    Line ends of a marked text are shown too, which otherwise could carry no mark; those of a
    rejected one do not break the line.
    """
    shown = text.translate(_PICTURES)
    if rejected:
        return shown.replace("\n", "↵")
    return shown.replace("\n", "↵\n") if marked else shown


def _rounds(ids: Iterator[int | None], rounds: Iterator[tuple[Any, ...]]) -> Iterator[Token]:
    for number, counts in enumerate(rounds, start=1):
        _, accepted, emitted, rejected, agreed, expected, weights = counts
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


def _after(context: Sequence[int], new: Sequence[int], decode: Decode) -> str:
    return decode([*context, *new])[len(decode(context)) :]


def _piece(shared: Sequence[Token], text: str) -> Piece:
    kinds = {token.kind for token in shared}
    kind = next((kind for kind in _PRECEDENCE if kind in kinds), REJECTED)
    return Piece(text, kind, *shared[-1][2:])
