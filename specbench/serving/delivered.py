"""What a server delivered by text, token ids and ``usage``; shares of time; told rounds.

The text decides: ids that it does not contain are no tokens of the answer, and ``usage`` counts
only if it fits them. What contradicts the text is named. Rounds are those of vLLM with the plugin;
they may be anything, so they are checked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.decoding.records import RoundRecord, RoundReport, read_report
from specbench.errors import require
from specbench.runs.columns import CALLS, NOTHING, TEXT, THOUGHTS
from specbench.serving.values import excerpt
from specbench.tasks.thoughts import answer_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEHIND = "token_ids go on behind the text"
UNLIKE = "token_ids do not spell the text"
UNEQUAL = "usage does not count the token_ids"
UNDELIVERED = "usage does not count the text"
UNSTOPPED = "the text goes on behind a stop string"
HIDDEN = "usage counts thoughts that were not delivered"
AT_ONCE = "all chunks came at once"
OVER_LIMIT = "more tokens are counted than were allowed"
UNSEEN = 8  # tokens that no text shows, such as the end token and the marks around thoughts
#: Seconds between chunks below which no decoder wrote them one by one, if all of them also took
#: less than this share of the time before the first one.
FASTEST, SHARE = 4e-4, 0.1
#: Fewer chunks may be those of one round, or wait together for a packet, if they came this early.
FEW, EARLY = 8, 0.1
MOST_IN_ONE = 16  # tokens in the only chunk of a stream
FEWEST_PER_WORD = 0.5  # tokens
LEAST_OF_THOUGHTS = 2  # bytes of a token, on average
PARTIAL = "\N{REPLACEMENT CHARACTER}"  # of a character whose other bytes were not written
MOST_ROUNDS, MOST_NUMBERS = 2**16, 2**10  # of a text; of a round
LARGEST = 2**31  # number

Span = tuple[float, float, float]  # when a request was sent, when its first token and its end came


class Delivered(NamedTuple):
    """What was delivered of an answer."""

    token_ids: list[int] | None  # without the end token; None if they are unknown or wrong
    output_tokens: int | None  # with the end token; None if nothing credible counts them
    contradiction: str = ""


class Chunk(NamedTuple):
    """When a part of a stream came, how many tokens it has, and their bytes."""

    seconds: float
    tokens: int  # 0 if the server does not tell
    size: int


def delivered(
    text: str,
    ids: list[int],
    counted: int | None,
    ended: bool,
    size: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop: Sequence[str] = (),
    least: float = 0,
) -> Delivered:
    """Return which tokens of an answer were delivered.

    ``text`` is the answer up to a ``stop`` string, ``ids`` are those that the server returns, if
    any, and ``counted`` its tokens by ``usage``, among them the end token if it ``ended``. It has
    ``size`` bytes with thoughts and calls of tools; no token has less than one. Fewer tokens than
    ``least`` cannot be all that came, such as those of the last chunk.
    """
    if tokenizer is not None and (ids or counted):
        expected = len(tokenizer(text, add_special_tokens=False)["input_ids"]) + ended
        if not ids:  # a sampled text may be spelled in other tokens than the tokenizer's
            credible = abs(counted - expected) <= 2 + expected // 10  # type: ignore[operator]
            return Delivered(None, counted) if credible else Delivered(None, expected, UNDELIVERED)
        length = covering(tokenizer, ids, text, stop)
        if length is None:
            return Delivered(None, expected, UNLIKE)
        if length < len(ids):
            return Delivered(ids[:length], length, BEHIND)
    if ids:
        if counted is not None and abs(counted - len(ids)) > 1:  # some count no end token
            return Delivered(ids, len(ids), UNEQUAL)
        last = ended and len(ids) == counted  # the last token is the end token
        return Delivered(ids[:-1] if last else ids, counted or len(ids))
    if counted and not least <= counted <= size + UNSEEN:
        return Delivered(None, None, UNDELIVERED)
    return Delivered(None, counted or None)


def content_of(text: str, thoughts: str, calls: str) -> str:
    """Return what an answer has for its reader, in a word of the column ``content``."""
    if answer_in(text).strip():
        return TEXT
    return CALLS if calls else THOUGHTS if f"{thoughts}{text}".strip() else NOTHING


def covering(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str, stop: Sequence[str] = ()
) -> int | None:
    """Return the number of tokens up to the end of a text, and of the string that stopped it.

    Tokens behind it that no text shows are counted, too. None if the tokens do not spell the text.
    """
    shown = text.strip(PARTIAL)
    for skip in (True, False):  # special tokens, which some servers show

        def decoded(tokens: Sequence[int], skip: bool = skip) -> str:
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": False}
            return str(tokenizer.decode(list(tokens), **options))

        whole = decoded(ids)
        if not whole.startswith(shown):  # some servers or tokenizers leave out the first space
            whole, shown = whole.lstrip(), shown.lstrip()
        if whole.startswith(shown):
            stops = [string for string in stop if whole.startswith(string, len(shown))]
            end = shown + stops[0] if stops else shown
            length = bisect_left(range(len(ids)), True, key=lambda n: end in decoded(ids[:n]))
            behind = decoded(ids[length:], True).strip(PARTIAL)
            return length if (behind if stops else behind.strip()) else len(ids)
    return None


def at_once(times: Sequence[float], output_tokens: int | None) -> bool:
    """Return whether the chunks of a stream arrived as no decoder can have written them.

    A proxy that holds them back sends them so.
    """
    if len(times) < 2:
        return bool(times) and (output_tokens or 0) > MOST_IN_ONE
    if len(times) < FEW and times[0] < EARLY:
        return False
    return times[-1] - times[0] < min(FASTEST * (len(times) - 1), SHARE * times[0])


def inter_token_seconds(
    chunks: Sequence[Chunk], end: float, output_tokens: int, size: int
) -> float | None:
    """Return the mean seconds between tokens behind the first chunk; None if they are unknown.

    ``end`` is when the last of ``output_tokens`` came, which have ``size`` bytes.
    """
    first = chunks[0]
    later = output_tokens - max(output_tokens * first.size / max(size, 1), 1)
    if 0 < first.tokens < output_tokens or len(chunks) >= output_tokens - 1:
        later = output_tokens - (first.tokens or 1)
    seconds = end - first.seconds
    return seconds / later if seconds > 0 and later > 0 else None


def shares_of(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return each request's share of the time before and after its first token, in seconds.

    The time in which several requests are in flight is split evenly among them.
    """
    changes: Counter[float] = Counter()  # of the number in flight
    for sent, _, ended in spans:
        changes[sent] += 1
        changes[ended] -= 1
    times = sorted({time for span in spans for time in span})
    in_flight, share = 0, 0.0  # the share of a request that is in flight all the time
    shares: dict[float, float] = {}
    for start, end in pairwise([*times, *times[-1:]]):
        shares[start] = share
        in_flight += changes[start]
        share += (end - start) / max(in_flight, 1)
    return [
        (shares[first] - shares[sent], shares[end] - shares[first]) for sent, first, end in spans
    ]


def read_rounds(
    value: Any, output_tokens: int, vocabulary: int | None = None
) -> tuple[RoundRecord, ...]:
    """Return the rounds of a text of so many tokens, the first of which has no round."""
    require(
        isinstance(value, list) and len(value) <= MOST_ROUNDS and all(map(_is_row, value)),
        f"the server tells the rounds {excerpt(value)}, which are none",
    )
    rounds: list[RoundRecord] = []
    left = output_tokens - 1
    for report in map(read_report, value):
        if left <= 0:
            break  # what was drafted after the end
        fault = _fault(report, vocabulary or LARGEST) or report.fault()
        require(fault is None, f"the server tells a round in which {fault}")
        rounds.append(report.record(min(report.accepted + 1, left)))
        left -= rounds[-1].emitted
    return tuple(rounds)


def _is_row(row: Any) -> bool:
    """Return whether a value has the form of one row of ``verify``'s report."""
    return (
        isinstance(row, list)
        and len(row) <= MOST_NUMBERS
        and len(row) % 7 == 2
        and len(row) > 9
        and all(type(number) in (int, float) and abs(number) < LARGEST for number in row)
    )


def _fault(report: RoundReport, vocabulary: int) -> str | None:
    """Describe a count or a token that cannot be, or return None."""
    drafts = len(report.drafted)
    if not 0 <= report.accepted <= report.proposed <= drafts:
        return f"{report.accepted} of {report.proposed} of {drafts} drafts are accepted"
    if not all(0 <= token < vocabulary for token in report.drafted):
        return f"a draft is no token of the {vocabulary}"
    return None
