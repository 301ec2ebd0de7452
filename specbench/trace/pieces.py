"""From tokens to pieces of text.

A byte-level tokenizer may spread one character over several tokens, and some tokenizers write a
token differently at the start of a text: so tokens are decoded together with those before them,
and those that make no whole character yet wait for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from specbench.trace.tokens import AGREED, CORRECTION, MISMATCH, REJECTED, TARGET, Token

Decode = Callable[[Sequence[int]], str]

END = "⟨end⟩"
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_TELLING = (MISMATCH, CORRECTION, TARGET, AGREED)  # of tokens that share a character, the first


class Piece(NamedTuple):
    """A token's text, or that of several which only together make a character.

    ``kind``, ``round``, ``expected`` and ``weight`` are those of ``Token``.
    """

    text: str
    kind: str
    round: int
    expected: float | None
    weight: float | None


def pieces(tokens: Iterable[Token], decode: Decode) -> Iterator[Piece]:
    """Yield the text of each token; those that are not rejected add up to the whole text.

    Args:
        tokens: A sample's tokens.
        decode: Turns ids into text.
    """
    ids: list[int] = []
    context = told = 0  # ids[context:told] were told last, and say how the next are written
    waiting: list[Token] = []
    for token in tokens:
        if token.id is None:
            break
        if token.kind == REJECTED:
            tried = [*ids[told:], token.id]
            yield _piece([token], _after(ids[context:told], tried, decode))
            continue
        ids.append(token.id)
        waiting.append(token)
        text = _after(ids[context:told], ids[told:], decode)
        if not text.endswith(_BROKEN):
            yield _piece(waiting, text)
            context, told, waiting = told, len(ids), []
    if waiting:
        yield _piece(waiting, _after(ids[context:told], ids[told:], decode))
    yield from (_piece([token], END) for token in tokens if token.id is None)


def visible(text: str, *, marked: bool = False, rejected: bool = False) -> str:
    """Return a text that is safe to show: control characters as pictures of themselves.

    Args:
        text: What a model wrote.
        marked: Show line ends too, which else could carry no mark.
        rejected: Do not break the line at them: the text does not.
    """
    shown = "".join(_picture(character) for character in text)
    if rejected:
        return shown.replace("\n", "↵")
    return shown.replace("\n", "↵\n") if marked else shown


def _after(context: Sequence[int], new: Sequence[int], decode: Decode) -> str:
    return decode([*context, *new])[len(decode(context)) :]


def _piece(shared: Sequence[Token], text: str) -> Piece:
    kinds = {token.kind for token in shared}
    kind = next((kind for kind in _TELLING if kind in kinds), REJECTED)
    return Piece(text, kind, *shared[-1][2:])


def _picture(character: str) -> str:
    code = ord(character)
    if character in "\n\t" or 0x20 <= code < 0x7F or code >= 0xA0:
        return character
    return chr(0x2400 + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}"
