"""A trace: a sample's text in pieces, and its counts in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from specbench.analysis.scores import shown_name, shown_scale
from specbench.metrics import METRICS
from specbench.trace.pieces import Decode, Piece, pieces
from specbench.trace.tokens import MISMATCH, REJECTED, tokens

#: What the marks mean, in the order of the legend.
LEGEND = (
    ("agreed", "agreed", "drafted and accepted, the target's likeliest token; or the target's own"),
    (MISMATCH, "mismatch", "drafted and accepted, not the target's likeliest token"),
    (REJECTED, "rejected", "drafted, not accepted"),
    ("correction", "correction", "the token drawn in its place"),
)


class Trace(NamedTuple):
    """One sample as it came about.

    Attributes:
        task: Its task.
        sample: Its id.
        repeat: Which of its repeats.
        method: Its method with its parameters.
        draft_length: Tokens drafted per round.
        facts: Its counts, a few words each.
        pieces: Its text.
        weighted: Whether its method weighs the target, so that pieces have a weight.
    """

    task: str
    sample: str
    repeat: int
    method: str
    draft_length: int
    facts: tuple[str, ...]
    pieces: tuple[Piece, ...]
    weighted: bool


def trace(record: Mapping[str, Any], name: str, decode: Decode) -> Trace:
    """Return the trace of a sample.

    Args:
        record: Its record.
        name: What its method is called.
        decode: Turns token ids of its run into text.

    Raises:
        UsageError: Its run did not record the rejected tokens.
        Unreadable: Its rounds do not add up to its tokens.
    """
    marked = tokens(record)
    return Trace(
        task=record["task"],
        sample=record["sample_id"],
        repeat=record["repeat"],
        method=name,
        draft_length=record["draft_length"],
        facts=tuple(_facts(record, sum(token.kind == MISMATCH for token in marked))),
        pieces=tuple(pieces(marked, decode)),
        weighted=any(token.weight is not None for token in marked),
    )


def _facts(record: Mapping[str, Any], mismatches: int) -> Iterator[str]:
    rounds = record["per_round"]
    proposed, accepted = sum(rounds["proposed"]), sum(rounds["accepted"])
    yield f"{sum(rounds['emitted'])} tokens in {len(rounds['emitted'])} rounds"
    if proposed:
        yield f"{accepted} of {proposed} drafts accepted ({accepted / proposed:.1%})"
        yield f"{mismatches} of them mismatches"
    if record.get("mean_weight") is not None:
        yield f"mean w {record['mean_weight']:.2f}"
    metric, quality = record.get("quality_metric"), record.get("quality")
    if metric in METRICS and quality is not None:
        yield f"{shown_name(metric)} {quality * shown_scale(metric):.1f}"
