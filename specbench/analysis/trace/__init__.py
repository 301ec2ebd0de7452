"""A trace: one sample of a run as classified tokens, pieces of text, and counts.

A round consists of the accepted drafts and then, unless the text ends earlier, one token from the
target: the correction of a rejected draft, or the bonus token if all drafts were accepted.

A byte-level tokenizer may split a character into several tokens, and some tokenizers decode a token
differently at the start of a text. Tokens are therefore decoded together with preceding ones, and
tokens that form an incomplete character are merged with the next ones. A terminal shows a trace
with colours or with marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.style import Style
from rich.text import Text

from specbench.analysis.tables.table import percent
from specbench.errors import UsageError, listed, printable, shown, unknown
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
LEGEND = (
    (AGREED, "agreed", "accepted, the target's likeliest token"),
    (MISMATCH, "mismatch", "accepted, not the target's likeliest token"),
    (REJECTED, "rejected", "drafted but not accepted"),
    (CORRECTION, "correction", "replaces the rejected token"),
    (BONUS, "bonus", "drawn from the target after all drafts of a round were accepted"),
)
# The marks of wdiff, and one for mismatches.
MARKS = {MISMATCH: ("{~", "~}"), REJECTED: ("[-", "-]"), CORRECTION: ("{+", "+}")}
_COLOURED = {
    MISMATCH: Style(color="green", underline=True),
    REJECTED: Style(color="red", strike=True),
    CORRECTION: Style(bold=True),
    BONUS: Style(italic=True),
}
# Text colours on a shaded background, which is always light.
_INKS = {MISMATCH: "#0b6628", REJECTED: "#a90f2b"}
_INK = "#1a1a1a"
_PALE, _DEEP = (240, 244, 250), (185, 212, 250)  # at w = 0 and w = 1
_ENDS = 1000  # characters of a prompt shown at either end
_STEPS = 5  # of the legend's scale


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


def tokens(record: SampleRecord) -> list[Token]:
    """Return the tokens of a sample in order; a rejected token precedes its correction.

    Raises:
        UsageError: The run did not record rejected tokens.
        Unreadable: The rounds do not match the tokens.
    """
    counts = [getattr(record.per_round, name) for name in _COUNTS]
    if None in counts:
        raise UsageError(f"the samples lack per_round.{_COUNTS[counts.index(None)]}: run again")
    ids: list[int | None] = list(record.token_ids or ())
    emitted = sum(record.per_round.emitted or ())
    if emitted == len(ids) + 1:
        ids.append(None)
    if emitted != len(ids):
        raise Unreadable("its rounds do not match its tokens")
    try:
        return list(_rounds(iter(ids), zip(*counts, strict=True)))
    except (ValueError, RuntimeError) as error:  # from zip, or from an iterator that ends too early
        raise Unreadable("its rounds do not match the accepted tokens") from error


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
            yield Token(
                next(ids), kind, number, _value_at(expected, position), _value_at(weights, position)
            )
        judged = _value_at(expected, accepted), _value_at(weights, accepted)
        if rejected is not None:
            yield Token(rejected, REJECTED, number, *judged)
        if emitted > accepted:
            kind = CORRECTION if rejected is not None else BONUS if proposed else TARGET
            yield Token(next(ids), kind, number, *judged)


def _value_at(values: Sequence[float], position: int) -> float | None:
    """Return the value at an index, or None after the last one."""
    return values[position] if position < len(values) else None


def _after(context: Sequence[int], new: Sequence[int], decode: Decode) -> str:
    return decode([*context, *new])[len(decode(context)) :]


def _piece(shared: Sequence[Token], text: str) -> Piece:
    kinds = {token.kind for token in shared}
    kind = next((kind for kind in _PRECEDENCE if kind in kinds), REJECTED)
    return Piece(text, kind, *shared[-1][2:])


class Trace(NamedTuple):
    """One sample token by token."""

    task: str
    sample: str
    repeat: int
    method: str  # with its parameters
    draft_length: int
    facts: tuple[str, ...]  # counts, a few words each
    prompt: str  # empty if the run does not store it
    pieces: tuple[Piece, ...]
    weighted: bool  # whether pieces have a weight on the target


def trace(record: SampleRecord, name: str, decode: Decode, prompt: str = "") -> Trace:
    """Return the trace of a sample; ``name`` is its method's name from ``sample_names``.

    Raises:
        UsageError: The run did not record rejected tokens.
        Unreadable: The rounds do not match the tokens.
    """
    record_tokens = tokens(record)
    return Trace(
        task=record.task,
        sample=record.sample_id,
        repeat=record.repeat,
        method=name,
        draft_length=record.draft_length,
        facts=tuple(_facts(record, sum(token.kind == MISMATCH for token in record_tokens))),
        prompt=prompt,
        pieces=tuple(pieces(record_tokens, decode)),
        weighted=any(token.weight is not None for token in record_tokens),
    )


def _facts(record: SampleRecord, mismatches: int) -> Iterator[str]:
    rounds = record.per_round
    proposed, accepted = sum(rounds.proposed or ()), sum(rounds.accepted or ())
    yield f"{sum(rounds.emitted or ())} tokens in {len(rounds.emitted or ())} rounds"
    if proposed:
        yield f"{accepted} of {proposed} drafts accepted ({percent(accepted / proposed, '.1f')})"
        yield f"{mismatches} of them mismatches"
    if record.mean_weight is not None:
        yield f"mean w {record.mean_weight:.2f}"
    metric, quality = record.quality_metric, record.quality
    if metric is not None and quality is not None:
        name, scale = shown_metric(metric)
        yield f"{name} {quality * scale:.1f}"


def run_decoder(run: Run) -> Decode:
    """Return a function that decodes token ids of a run, without loading its models.

    Raises:
        UsageError: The run does not name its models, the user did not name a target that is not
            bundled, or the tokenizer is not available.
    """
    from specbench.engine.sources import load_tokenizer

    roles = () if run.loading.dummy else ("target",)
    tokenizer = load_tokenizer(run.pair_with(*roles), "target", run.loading)

    def decode(ids: Any) -> str:
        return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    return decode


def sample_names(records: Sequence[SampleRecord]) -> list[str]:
    """Return the method names of records: label, N if there are several, and turn."""
    lengths = [record.draft_length for record in records]
    several = len({*lengths} - {0}) > 1
    turns = [f" turn {record.turn}" if record.turn else "" for record in records]
    return [
        (f"{label} N={length}" if several and length else label) + turn
        for label, length, turn in zip(
            method_labels([*map(vars, records)]), lengths, turns, strict=True
        )
    ]


def find_sample(
    records: Iterable[SampleRecord],
    sample: str | None = None,
    *,
    task: str | None = None,
    method: str | None = None,
) -> tuple[SampleRecord, str]:
    """Return one sample's record of the first repeat and its method's name from ``sample_names``.

    Task and method are optional if the sample is unique without them. The method may be a name from
    ``sample_names``. Without ``sample``, a sample with rejected drafts is preferred, then one of a
    learned rule, then the one with the most accepted mismatches.

    Raises:
        UsageError: No sample or several samples match; the message lists the choices.
    """
    records = [record for record in records if record.repeat == 0]
    if sample is None:
        return _worth_seeing(records, task, method)
    matching = [record for record in records if record.sample_id == sample]
    if not matching:
        raise UsageError(f"no sample `{shown(sample)}` in this run: see sample_id in samples.csv")
    chosen = _only("--task", task, {r.task: {r.task} for r in matching})
    matching = [r for r in matching if r.task == chosen]
    by_name = dict(zip(sample_names(matching), matching, strict=True))
    names = {
        name: {name, r.method, short_name(r.method), name.split(" N=")[0]}
        for name, r in by_name.items()
    }
    name = _only("--method", method, names)
    if by_name[name].status == ERROR:
        raise UsageError(f"the sample could not be decoded ({by_name[name].error}): run again")
    return by_name[name], name


def _worth_seeing(
    records: Sequence[SampleRecord], task: str | None, method: str | None
) -> tuple[SampleRecord, str]:
    """Return the sample that shows most of its rule, and its method's name.

    A rule that accepts every draft has the most mismatches and shows nothing else.

    Raises:
        UsageError: No sample matches.
    """
    fitting = [
        (record, name)
        for record, name in zip(records, sample_names(records), strict=True)
        if task in (None, record.task)
        and method in (None, record.method, name, name.split(" N=")[0])
        and record.status != ERROR
    ]
    if not fitting:
        options = {"--task": task, "--method": method}
        chosen = " ".join(f"{flag} {value}" for flag, value in options.items() if value is not None)
        raise UsageError(f"no sample with {chosen}: see task and method in samples.csv")
    return max(fitting, key=lambda fit: _interest(fit[0]))


def _interest(record: SampleRecord) -> tuple[bool, bool, int]:
    """Return whether drafts were rejected, whether the rule has a head, and the mismatches."""
    rounds = record.per_round
    rejected = any(token is not None for token in rounds.rejected or ())
    mismatches = sum(len(flags) - sum(flags) for flags in rounds.agreed or ())
    return rejected, record.head is not None, mismatches


def _only(option: str, chosen: str | None, names: Mapping[str, set[str]]) -> str:
    """Return the only name that matches ``chosen``; None matches every name."""
    fitting = [name for name, meanings in names.items() if chosen is None or chosen in meanings]
    if not fitting:
        raise UsageError(unknown(f"{option} of this sample", str(chosen), names))
    if len(fitting) > 1:
        raise UsageError(f"several samples match: choose with {option} from {listed(fitting)}")
    return fitting[0]


def show(trace: Trace, console: Console) -> None:
    """Print a trace: header, legend, prompt and text.

    Without colours, the text has marks as in wdiff, and no shading.
    """
    coloured = console.color_system is not None and not console.no_color
    console.print(written(trace, coloured), soft_wrap=not coloured)


def written(trace: Trace, coloured: bool = True) -> Text:
    """Return a trace as text, with colours or with marks."""
    drawn = f", N = {trace.draft_length}" if trace.draft_length else ""
    repeated = f", repeat {trace.repeat}" if trace.repeat else ""
    title = f"{trace.task}, {trace.sample}{repeated}: {trace.method}{drawn}"
    facts = visible("; ".join(trace.facts))
    output = Text.assemble((visible(title, rejected=True), "bold"), "\n", facts, "\n")
    output.append_text(_legend(trace, coloured)).append("\n\n")
    if trace.prompt:
        prompt = Text.assemble(("prompt: ", "bold"), (_shortened(trace.prompt), "dim"), "\n\n")
        output.append_text(prompt)
    return output.append_text(Text().join(_marked(piece, coloured) for piece in trace.pieces))


def _shortened(prompt: str) -> str:
    """Return a prompt that is safe to display, without the middle of a long one."""
    text = visible(prompt.strip())
    if len(text) <= 2 * _ENDS:
        return text
    return f"{text[:_ENDS]}\n[... {len(text) - 2 * _ENDS:,} characters ...]\n{text[-_ENDS:]}"


def _legend(trace: Trace, coloured: bool) -> Text:
    """Return a one-line legend of the marks."""
    if not trace.draft_length:
        return Text("every token is drawn from the target", "dim")
    entries = LEGEND if coloured else [entry for entry in LEGEND if entry[0] != BONUS]
    marks = [_marked(Piece(word, kind, 0, None, None), coloured) for kind, word, _ in entries]
    line = Text("  ").join(marks)
    if trace.weighted and coloured:
        line.append("  w: 0 ")
        for step in range(_STEPS):
            line.append("  ", _shade(step / (_STEPS - 1)))
        line.append(" 1")
    return line


def _marked(piece: Piece, coloured: bool) -> Text:
    text = visible(piece.text, marked=piece.kind in MARKS, rejected=piece.kind == REJECTED)
    if not coloured:
        before, after = MARKS.get(piece.kind, ("", ""))
        return Text(before + text + after)
    style = _COLOURED.get(piece.kind, Style())
    if piece.weight is not None:
        style += Style(color=_INKS.get(piece.kind, _INK)) + _shade(piece.weight)
    return Text(text, style)


def _shade(weight: float) -> Style:
    position = min(max(weight, 0.0), 1.0)
    mixed = (round(a + position * (b - a)) for a, b in zip(_PALE, _DEEP, strict=True))
    return Style(bgcolor="#{:02x}{:02x}{:02x}".format(*mixed))
