"""A trace: one sample of a run as classified tokens, pieces of text, and counts.

A round consists of the accepted drafts and then, unless the text ends earlier, one token from the
target: the correction of a rejected draft, or the bonus token if all drafts were accepted.

Tokens are decoded together with preceding ones, since a character may consist of several, and since
some tokenizers decode a token differently at the start of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from rich.console import Console
from rich.style import Style
from rich.text import Text

from specbench.analysis.tables.table import percent
from specbench.errors import UsageError, printable, require, shown
from specbench.plugins import short_name
from specbench.runs.labels import method_labels
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.run import Run
from specbench.tasks.metrics import shown_metric

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
#: The meaning of the marks, in the order of the legend.
LEGEND = {
    AGREED: "accepted, the target's likeliest token",
    MISMATCH: "accepted, not the target's likeliest token",
    REJECTED: "drafted but not accepted",
    CORRECTION: "replaces the rejected token",
    BONUS: "drawn from the target after all drafts of a round were accepted",
}
# The marks of wdiff, and one for mismatches.
MARKS = {MISMATCH: ("{~", "~}"), REJECTED: ("[-", "-]"), CORRECTION: ("{+", "+}")}
_STYLES = {MISMATCH: "green underline", REJECTED: "red strike", CORRECTION: "bold", BONUS: "italic"}
_INK, _INKS = "#1a1a1a", {MISMATCH: "#0b6628", REJECTED: "#a90f2b"}  # on a light background
_PALE, _DEEP = (240, 244, 250), (185, 212, 250)  # at w = 0 and w = 1
_ENDS = 1000  # characters of a prompt shown at either end


class Token(NamedTuple):
    """A token that was drafted or emitted."""

    id: int | None  # None for the end token, which a record omits
    kind: str  # AGREED, MISMATCH, REJECTED, CORRECTION, BONUS or TARGET
    round: int  # from 1
    expected: float | None = None  # probability that the draft at its position is accepted
    weight: float | None = None  # weight on the target, for methods with one
    text: str = ""  # of a piece: also of the tokens before it that form one character with it


class Trace(NamedTuple):
    """One sample token by token."""

    record: SampleRecord
    method: str  # with its parameters
    facts: tuple[str, ...]  # counts, a few words each
    pieces: tuple[Token, ...]
    prompt: str = ""  # empty if the run does not store it


def trace(record: SampleRecord, name: str, decode: Decode, prompt: str = "") -> Trace:
    """Return the trace of a sample, whose method has a name of ``sample_names``."""
    of_record, rounds = tokens(record), record.per_round
    proposed, accepted = sum(rounds.proposed or ()), sum(rounds.accepted or ())
    facts = [f"{sum(rounds.emitted or ())} tokens in {len(rounds.emitted or ())} rounds"]
    if proposed:
        mismatches = sum(token.kind == MISMATCH for token in of_record)
        share = percent(accepted / proposed, ".1f")
        facts.append(f"{accepted} of {proposed} drafts accepted ({share})")
        facts.append(f"{mismatches} of them mismatches")
    if record.mean_weight is not None:
        facts.append(f"mean w {record.mean_weight:.2f}")
    facts += score_of(record)
    return Trace(record, name, tuple(facts), tuple(pieces(of_record, decode)), prompt)


def score_of(record: SampleRecord) -> list[str]:
    """Return the metric and the score of a sample in words; none if it has no score."""
    if record.quality_metric is None or record.quality is None:
        return []
    unit, scale = shown_metric(record.quality_metric)
    return [f"{unit} {record.quality * scale:.1f}"]


def tokens(record: SampleRecord) -> list[Token]:
    """Return the tokens of a sample in order; a rejected token precedes its correction.

    Raises:
        UsageError: The run did not record rejected tokens, or its rounds do not match the tokens.
    """
    counts = [getattr(record.per_round, name) for name in _COUNTS]
    if None in counts:
        raise UsageError(f"the samples lack per_round.{_COUNTS[counts.index(None)]}: run again")
    marked, ids = list[Token](), chain(record.token_ids or (), [None])  # of the end token
    try:
        for number, of_round in enumerate(zip(*counts, strict=True), start=1):
            proposed, accepted, emitted, rejected, agreed, *judged = of_round
            # Expected acceptance and weight at each position; a bonus token has no judged one.
            at = [*zip_longest(*judged), *[(None, None)] * (accepted + 1)]
            for position, likeliest in zip(range(accepted), agreed, strict=True):
                kind = AGREED if likeliest else MISMATCH
                marked.append(Token(next(ids), kind, number, *at[position]))
            if rejected is not None:
                marked.append(Token(rejected, REJECTED, number, *at[accepted]))
            if emitted > accepted:
                kind = CORRECTION if rejected is not None else BONUS if proposed else TARGET
                marked.append(Token(next(ids), kind, number, *at[accepted]))
        whole = next(ids, None) is None and sum(counts[2]) - len(record.token_ids or ()) in (0, 1)
    except (ValueError, StopIteration):  # lists of other lengths
        whole = False
    if not whole:
        raise UsageError("the sample's rounds do not match its tokens: run again")
    return marked


def pieces(tokens: Iterable[Token], decode: Decode) -> Iterator[Token]:
    """Yield the text of each token; the pieces that are not rejected form the whole text."""
    ids: list[int] = []
    context = written = 0  # ids[context:written] affect how the next tokens are decoded
    waiting: list[Token] = []

    def piece(shared: Sequence[Token], new: Sequence[int]) -> Token:
        kinds = {token.kind for token in shared}
        kind = next((kind for kind in _PRECEDENCE if kind in kinds), REJECTED)
        before = ids[context:written]
        text = decode([*before, *new])[len(decode(before)) :]
        return shared[-1]._replace(kind=kind, text=text)

    for token in tokens:
        if token.id is None:
            break
        if token.kind == REJECTED:
            yield piece([token], [*ids[written:], token.id])
            continue
        ids.append(token.id)
        waiting.append(token)
        whole = piece(waiting, ids[written:])
        if not whole.text.endswith(_BROKEN):
            yield whole
            context, written, waiting = written, len(ids), []
    if waiting:
        yield piece(waiting, ids[written:])
    yield from (token._replace(text=END) for token in tokens if token.id is None)


def run_decoder(run: Run) -> Decode:
    """Return a function that decodes token ids of a run, without loading its models."""
    from specbench.engine.sources import load_tokenizer

    roles = () if run.loading.dummy else ("target",)
    tokenizer = load_tokenizer(run.pair_with(*roles), "target", run.loading)
    return lambda ids: str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def sample_names(records: Sequence[SampleRecord]) -> list[str]:
    """Return the method names of records: label, N if there are several, and turn."""
    several = len({record.draft_length for record in records} - {0}) > 1
    return [
        label
        + (f" N={record.draft_length}" if several and record.draft_length else "")
        + (f" turn {record.turn}" if record.turn else "")
        for label, record in zip(method_labels([*map(vars, records)]), records, strict=True)
    ]


def find_sample(records: Iterable[SampleRecord], **chosen: str | None) -> tuple[SampleRecord, str]:
    """Return the sample of some ``sample``, ``task`` and ``method`` that shows most of its rule.

    It has rejected drafts, which a rule that accepts everything lacks, a learned rule, and the most
    accepted mismatches, in this order. Its method's name follows.
    """
    records, fitting = [record for record in records if record.repeat == 0], []
    for record, name in zip(records, sample_names(records), strict=True):
        label = re.sub(r" N=\d+", "", name)
        names = name, label, label.split(" turn ")[0], record.method, short_name(record.method)
        values = {"sample": (record.sample_id,), "task": (record.task,), "method": names}
        if all(chosen.get(key) in (None, *fit) for key, fit in values.items()):
            rejected = any(token is not None for token in record.per_round.rejected or ())
            mismatches = sum(len(flags) - sum(flags) for flags in record.per_round.agreed or ())
            interest = record.status != ERROR, rejected, record.head is not None, mismatches
            fitting.append((interest, record, name))
    words = " ".join(f"--{key} {shown(text)}" for key, text in chosen.items() if text)
    require(bool(fitting), f"no sample with {words}: see sample_id, task and method in samples.csv")
    _, best, name = max(fitting, key=lambda fit: fit[0])
    require(best.status != ERROR, f"the sample could not be decoded ({best.error}): run again")
    return best, name


def visible(text: str, kind: str = "") -> str:
    """Return a text with symbols for control characters, and for line ends that carry a mark."""
    line_end = {REJECTED: "↵", MISMATCH: "↵\n", CORRECTION: "↵\n"}.get(kind, "\n")
    return printable(text.translate(_PICTURES)).replace("\n", line_end)


def show(trace: Trace, console: Console) -> None:
    """Print a trace; without colours with marks as in wdiff."""
    coloured = console.color_system is not None and not console.no_color
    console.print(written(trace, coloured), soft_wrap=not coloured)


def written(trace: Trace, coloured: bool = True) -> Text:
    """Return a trace as text, with colours or with marks: header, legend, prompt and text."""
    record, length = trace.record, trace.record.draft_length
    drawn = f", N = {length}" if length else ""
    title = visible(f"{record.task}, {record.sample_id}: {trace.method}{drawn}", REJECTED)
    output = Text.assemble((title, "bold"), "\n", visible("; ".join(trace.facts)), "\n")
    if length:
        kinds = [kind for kind in LEGEND if coloured or kind != BONUS]
        marks = (_marked(Token(None, kind, 0, text=kind), coloured) for kind in kinds)
        output.append_text(Text("  ").join(marks))
    else:
        output.append("every token is drawn from the target", "dim")
    if coloured and any(piece.weight is not None for piece in trace.pieces):
        scale = (("  ", _shade(weight)) for weight in (0, 0.25, 0.5, 0.75, 1))
        output.append_text(Text.assemble("  w: 0 ", *scale, " 1"))
    output.append("\n\n")
    if prompt := visible(trace.prompt.strip()):
        if (left_out := len(prompt) - 2 * _ENDS) > 0:
            prompt = f"{prompt[:_ENDS]}\n[... {left_out:,} characters ...]\n{prompt[-_ENDS:]}"
        output.append("prompt: ", "bold").append(prompt, "dim").append("\n\n")
    return output.append_text(Text().join(_marked(piece, coloured) for piece in trace.pieces))


def _marked(piece: Token, coloured: bool) -> Text:
    text = visible(piece.text, piece.kind)
    if not coloured:
        return Text(text.join(MARKS.get(piece.kind, ("", ""))))
    style = Style.parse(_STYLES.get(piece.kind, ""))
    if piece.weight is not None:
        style += Style(color=_INKS.get(piece.kind, _INK)) + _shade(piece.weight)
    return Text(text, style)


def _shade(weight: float) -> Style:
    position = min(max(weight, 0.0), 1.0)
    mixed = (round(a + position * (b - a)) for a, b in zip(_PALE, _DEEP, strict=True))
    return Style(bgcolor="#{:02x}{:02x}{:02x}".format(*mixed))
