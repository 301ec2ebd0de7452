"""A trace: one sample of a run as pieces of text with counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specbench.analysis.trace.tokens import (
    AGREED,
    BONUS,
    CORRECTION,
    MISMATCH,
    REJECTED,
    Decode,
    Piece,
    pieces,
    tokens,
)
from specbench.errors import UsageError, listed, shown, unknown
from specbench.plugins import short_name
from specbench.runs.labels import method_labels
from specbench.runs.records import ERROR
from specbench.runs.run import Run
from specbench.runs.table import percent
from specbench.tasks.metrics import shown_metric

Record = Mapping[str, Any]

#: The meaning of the marks, in the order of the legend.
LEGEND = (
    (AGREED, "agreed", "accepted, the target's likeliest token"),
    (MISMATCH, "mismatch", "accepted, not the target's likeliest token"),
    (REJECTED, "rejected", "drafted but not accepted"),
    (CORRECTION, "correction", "replaces the rejected token"),
    (BONUS, "bonus", "drawn from the target after all drafts of a round were accepted"),
)


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


def trace(record: Record, name: str, decode: Decode, prompt: str = "") -> Trace:
    """Return the trace of a sample; ``name`` is its method's name from ``sample_names``.

    Raises:
        UsageError: The run did not record rejected tokens.
        Unreadable: The rounds do not match the tokens.
    """
    record_tokens = tokens(record)
    return Trace(
        task=record["task"],
        sample=record["sample_id"],
        repeat=record["repeat"],
        method=name,
        draft_length=record["draft_length"],
        facts=tuple(_facts(record, sum(token.kind == MISMATCH for token in record_tokens))),
        prompt=prompt,
        pieces=tuple(pieces(record_tokens, decode)),
        weighted=any(token.weight is not None for token in record_tokens),
    )


def _facts(record: Record, mismatches: int) -> Iterator[str]:
    rounds = record["per_round"]
    proposed, accepted = sum(rounds["proposed"]), sum(rounds["accepted"])
    yield f"{sum(rounds['emitted'])} tokens in {len(rounds['emitted'])} rounds"
    if proposed:
        yield f"{accepted} of {proposed} drafts accepted ({percent(accepted / proposed, '.1f')})"
        yield f"{mismatches} of them mismatches"
    if record.get("mean_weight") is not None:
        yield f"mean w {record['mean_weight']:.2f}"
    metric, quality = record.get("quality_metric"), record.get("quality")
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


def sample_names(records: Sequence[Record]) -> list[str]:
    """Return the method names of records: label, N if there are several, and turn."""
    lengths = [record["draft_length"] for record in records]
    several = len({*lengths} - {0}) > 1
    turns = [f" turn {turn}" if (turn := record.get("turn")) else "" for record in records]
    return [
        (f"{label} N={length}" if several and length else label) + turn
        for label, length, turn in zip(method_labels(records), lengths, turns, strict=True)
    ]


def find_sample(
    records: Iterable[Record],
    sample: str | None = None,
    *,
    task: str | None = None,
    method: str | None = None,
) -> tuple[Record, str]:
    """Return one sample's record of the first repeat and its method's name from ``sample_names``.

    Task and method are optional if the sample is unique without them. The method may be a name from
    ``sample_names``. Without ``sample``, a sample with rejected drafts is preferred, then one of a
    learned rule, then the one with the most accepted mismatches.

    Raises:
        UsageError: No sample or several samples match; the message lists the choices.
    """
    records = [record for record in records if record["repeat"] == 0]
    if sample is None:
        return _worth_seeing(records, task, method)
    matching = [record for record in records if record["sample_id"] == sample]
    if not matching:
        raise UsageError(f"no sample `{shown(sample)}` in this run: see sample_id in samples.csv")
    chosen = _only("--task", task, {r["task"]: {r["task"]} for r in matching})
    matching = [r for r in matching if r["task"] == chosen]
    by_name = dict(zip(sample_names(matching), matching, strict=True))
    names = {
        name: {name, r["method"], short_name(r["method"]), name.split(" N=")[0]}
        for name, r in by_name.items()
    }
    name = _only("--method", method, names)
    if by_name[name].get("status") == ERROR:
        error = by_name[name].get("error")
        raise UsageError(f"the sample could not be decoded ({error}): run again")
    return by_name[name], name


def _worth_seeing(
    records: Sequence[Record], task: str | None, method: str | None
) -> tuple[Record, str]:
    """Return the sample that shows most of its rule, and its method's name.

    A rule that accepts every draft has the most mismatches and shows nothing else.

    Raises:
        UsageError: No sample matches.
    """
    fitting = [
        (record, name)
        for record, name in zip(records, sample_names(records), strict=True)
        if task in (None, record["task"])
        and method in (None, record["method"], name, name.split(" N=")[0])
        and record.get("status") != ERROR
    ]
    if not fitting:
        options = {"--task": task, "--method": method}
        chosen = " ".join(f"{flag} {value}" for flag, value in options.items() if value is not None)
        raise UsageError(f"no sample with {chosen}: see task and method in samples.csv")
    return max(fitting, key=lambda fit: _interest(fit[0]))


def _interest(record: Record) -> tuple[bool, bool, int]:
    """Return whether drafts were rejected, whether the rule has a head, and the mismatches."""
    rounds = record["per_round"]
    rejected = any(token is not None for token in rounds.get("rejected", []))
    mismatches = sum(len(flags) - sum(flags) for flags in rounds.get("agreed", []))
    return rejected, record.get("head") is not None, mismatches


def _only(option: str, given: str | None, known: Mapping[str, set[str]]) -> str:
    """Return the only name that matches ``given``; None matches every name."""
    fitting = [name for name, meanings in known.items() if given is None or given in meanings]
    if not fitting:
        raise UsageError(unknown(f"{option} of this sample", str(given), known))
    if len(fitting) > 1:
        raise UsageError(f"several samples match: choose with {option} from {listed(fitting)}")
    return fitting[0]
