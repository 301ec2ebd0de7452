"""Convert a sample's record to classified tokens, and tokens to pieces of text.

A round consists of the accepted drafts and then, unless the text ends earlier, one token from the
target: the correction of a rejected draft, or the bonus token if all drafts were accepted.

A byte-level tokenizer may split a character into several tokens, and some tokenizers decode a token
differently at the start of a text. Tokens are therefore decoded together with preceding ones, and
tokens that form an incomplete character are merged with the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specbench.errors import UsageError, printable

Decode = Callable[[Sequence[int]], str]

AGREED = "agreed"  # drafted, accepted, and the target's likeliest token
MISMATCH = "mismatch"  # drafted and accepted, but not the target's likeliest token
REJECTED = "rejected"  # drafted, but not part of the text
CORRECTION = "correction"  # replaces a rejected draft
BONUS = "bonus"  # follows a round's accepted drafts
TARGET = "target"  # the only token of a round without drafts
END = "⟨end⟩"

_COUNTS = ("proposed", "accepted", "emitted", "rejected", "agreed", "expected", "weights")
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_PICTURES |= dict.fromkeys(range(0x7F, 0xA0), ord("\N{SYMBOL FOR DELETE}"))
_PRECEDENCE = (MISMATCH, CORRECTION, BONUS, TARGET, AGREED)  # for tokens that share a character


class Token(NamedTuple):
    """A token that was drafted or emitted."""

    id: int | None  # None for the end token, which a record omits
    kind: str  # AGREED, MISMATCH, REJECTED, CORRECTION, BONUS or TARGET
    round: int  # from 1
    expected: float | None = None  # probability that the draft at its position is accepted
    weight: float | None = None  # weight on the target, for methods with one


class Piece(NamedTuple):
    """The text of a token, or of several that form one character; other fields as in ``Token``."""

    text: str
    kind: str
    round: int
    expected: float | None
    weight: float | None


class Unreadable(Exception):
    """The rounds of a record do not match its tokens."""


def tokens(record: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of a sample in order; a rejected token precedes its correction.

    Raises:
        UsageError: The run did not record rejected tokens.
        Unreadable: The rounds do not match the tokens.
    """
    rounds = record["per_round"]
    if missing := [name for name in _COUNTS if name not in rounds]:
        raise UsageError(f"the samples lack per_round.{missing[0]}: run again")
    ids: list[int | None] = list(record["token_ids"])
    if sum(rounds["emitted"]) == len(ids) + 1:
        ids.append(None)
    if sum(rounds["emitted"]) != len(ids):
        raise Unreadable("its rounds do not match its tokens")
    try:
        return list(_rounds(iter(ids), zip(*(rounds[name] for name in _COUNTS), strict=True)))
    except (ValueError, RuntimeError) as error:  # from zip, or from an iterator that ends too early
        raise Unreadable("its per-round lists have different lengths") from error


def pieces(tokens: Iterable[Token], decode: Decode) -> Iterator[Piece]:
    """Yield the text of each token; the pieces that are not rejected form the whole text."""
    ids: list[int] = []
    context = written = 0  # ids[context:written] affect how the next tokens are decoded
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
    """Return a text that is safe to display: control characters become visible symbols.

    A line end of a marked text gets a visible symbol to carry the mark. A line end of a rejected
    text does not break the line.
    """
    visible_text = printable(text.translate(_PICTURES))
    if rejected:
        return visible_text.replace("\n", "↵")
    return visible_text.replace("\n", "↵\n") if marked else visible_text


def _rounds(ids: Iterator[int | None], rounds: Iterator[tuple[Any, ...]]) -> Iterator[Token]:
    for number, counts in enumerate(rounds, start=1):
        proposed, accepted, emitted, rejected, agreed, expected, weights = counts
        for position, likeliest in zip(range(accepted), agreed, strict=True):
            kind = AGREED if likeliest else MISMATCH
            yield Token(next(ids), kind, number, _at(expected, position), _at(weights, position))
        judged = _at(expected, accepted), _at(weights, accepted)
        if rejected is not None:
            yield Token(rejected, REJECTED, number, *judged)
        if emitted > accepted:
            kind = CORRECTION if rejected is not None else BONUS if proposed else TARGET
            yield Token(next(ids), kind, number, *judged)


def _at(values: Sequence[float], place: int) -> float | None:
    """Return the value at an index, or None after the last one."""
    return values[place] if place < len(values) else None


def _after(context: Sequence[int], new: Sequence[int], decode: Decode) -> str:
    return decode([*context, *new])[len(decode(context)) :]


def _piece(shared: Sequence[Token], text: str) -> Piece:
    kinds = {token.kind for token in shared}
    kind = next((kind for kind in _PRECEDENCE if kind in kinds), REJECTED)
    return Piece(text, kind, *shared[-1][2:])
