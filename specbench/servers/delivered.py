"""Which tokens of an answer were delivered, by its text, its token ids and the server's ``usage``.

The text decides: ids that it does not contain are no tokens of the answer, and ``usage`` counts
only if it fits them. Whatever contradicts the text is named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEHIND = "token_ids go on behind the text"
UNLIKE = "token_ids do not spell the text"
UNEQUAL = "usage does not count the token_ids"
UNDELIVERED = "usage does not count the text"
UNSTOPPED = "the text goes on behind a stop string"
HIDDEN = "usage counts thoughts that were not delivered"
AT_ONCE = "all chunks came at once"
OVER_LIMIT = "usage counts more tokens than were allowed"
#: Tokens that no text shows, such as the end token and the marks around thoughts.
UNSEEN = 8
#: Seconds between chunks below which a decoder did not write them, if they also took less than
#: this share of the time before the first one. A proxy that holds chunks back sends them so.
FASTEST, SHORT = 4e-4, 0.1
#: Fewer chunks may be those of one round, or wait together for a packet, if they came this early.
FEW, EARLY = 8, 0.1
MOST_IN_ONE = 16  # tokens in the only chunk of a stream
PARTIAL = "\N{REPLACEMENT CHARACTER}"  # of a character whose other bytes were not written


class Delivered(NamedTuple):
    """What was delivered of an answer."""

    token_ids: list[int] | None  # without the end token; None if they are unknown or wrong
    output_tokens: int | None  # with the end token; None if nothing credible counts them
    contradictions: tuple[str, ...]


class Written(NamedTuple):
    """What a server says that it wrote."""

    text: str
    length: int  # bytes, with thoughts and calls of tools
    token_ids: Sequence[int]
    counted: int | None  # by ``usage``
    hidden: int  # tokens of thoughts that were not delivered, by ``usage``
    ended: bool  # by the end token


def delivered(
    written: Written, tokenizer: PreTrainedTokenizerBase | None = None, stop: Sequence[str] = ()
) -> Delivered:
    """Return which tokens of an answer were delivered.

    Without the server's tokenizer, ids decide over ``usage``, which must not count more tokens than
    there are bytes.

    Args:
        written: The answer.
        tokenizer: That of the server.
        stop: Strings that end the text, without being part of it.
    """
    ids, counted = [*written.token_ids], written.counted
    told: list[str] = [HIDDEN] if counted and written.hidden else []
    counted = max(counted - written.hidden, 0) if counted else counted
    if ids and tokenizer is not None:
        length = covering(tokenizer, ids, written.text, stop)
        if length is None:
            ids, counted = [], len(_encoded(tokenizer, written.text)) + written.ended
            return Delivered(None, counted, (*told, UNLIKE))
        if length < len(ids):
            return Delivered(ids[:length], length, (*told, BEHIND))
    if ids:
        if counted is not None and not 0 <= counted - len(ids) + 1 <= 2:
            return Delivered(ids, len(ids), (*told, UNEQUAL))
        last = written.ended and len(ids) == counted  # the last token is the end token
        return Delivered(ids[:-1] if last else ids, counted or len(ids), (*told,))
    if not counted:
        return Delivered(None, None, (*told,))
    if tokenizer is None:
        credible = counted <= written.length + UNSEEN
        return Delivered(
            None, counted if credible else None, (*told, *([] if credible else [UNDELIVERED]))
        )
    expected = len(_encoded(tokenizer, written.text)) + written.ended
    # A sampled text may be spelled in other tokens than the tokenizer's.
    if abs(counted - expected) <= 2 + expected // 10:
        return Delivered(None, counted, (*told,))
    return Delivered(None, expected, (*told, UNDELIVERED))


def covering(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str, stop: Sequence[str] = ()
) -> int | None:
    """Return the number of tokens up to the end of a text, and of the string that stopped it.

    Tokens behind it that no text shows are counted, too. None if the tokens do not spell the text.
    """
    shown = text.strip(PARTIAL).lstrip()  # some servers leave out the first space

    def decoded(tokens: Sequence[int], special: bool = False) -> str:
        return str(
            tokenizer.decode(
                list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def first(string: str, special: bool) -> int:
        """Return the smallest number of tokens whose text contains a string."""
        return bisect_left(
            range(len(ids)), True, lo=0, key=lambda end: string in decoded(ids[:end], special)
        )

    for special in (False, True):
        whole = decoded(ids, special)
        if shown not in whole:
            continue
        after = whole[whole.index(shown) + len(shown) :]
        stops = [string for string in stop if after.startswith(string)]
        length = first(shown + stops[0] if stops else shown, special)
        behind = decoded(ids[length:]).strip(PARTIAL)
        return length if (behind if stops else behind.strip()) else len(ids)
    return None


def at_once(times: Sequence[float], output_tokens: int | None) -> bool:
    """Return whether the chunks of a stream arrived as no decoder can have written them."""
    if len(times) < 2:
        return bool(times) and (output_tokens or 0) > MOST_IN_ONE
    if len(times) < FEW and times[0] < EARLY:
        return False
    seconds = times[-1] - times[0]
    return seconds < min(FASTEST * (len(times) - 1), SHORT * times[0])


def _encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
