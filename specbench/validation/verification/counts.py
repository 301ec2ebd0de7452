"""Counts and scores of a run follow from its rounds and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from specbench.decoding.records import Generation, RoundRecord
from specbench.experiment.measurements import measurements, score_text
from specbench.plugins import short_name
from specbench.runs.columns import BLEU_TERMS
from specbench.tasks.example import Example
from specbench.validation.findings import Finding
from specbench.validation.verification.differences import Record, difference, finding

#: Largest error of a mean of probabilities that are stored with four digits.
STORED = 0.5e-4 + 1e-9


def check_counts(records: Sequence[Record]) -> Finding:
    """Check that the counts and rates of samples follow from their rounds and tokens."""

    def compare(record: Record) -> str:
        try:
            return difference(record, _measured(record), STORED) or _impossible(record)
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return "its rounds or counts are not whole"

    compared = ((record, compare(record)) for record in records)
    return finding("counts follow from rounds", f"{len(records):,} samples", compared)


def _impossible(record: Record) -> str:
    """Return what no decoder does: negative times, or counts of rounds that do not fit."""
    for name, value in record.items():
        if name.endswith("_seconds") and (value or 0) < 0:
            return f"{name} is {value:g}"
    rounds = record["per_round"]
    columns = zip(rounds["proposed"], rounds["accepted"], rounds["emitted"], strict=True)
    for number, (proposed, accepted, emitted) in enumerate(columns):
        if not 0 <= accepted <= proposed <= record["draft_length"]:
            return f"round {number} has {accepted} of {proposed} drafts accepted"
        if emitted not in (accepted, accepted + 1):
            return f"round {number} has {accepted} accepted drafts and {emitted} tokens"
    tokens = len(record["token_ids"]) + (record["stopped_by"] == "eos")
    emitted = sum(rounds["emitted"])
    return "" if emitted == tokens else f"the text has {tokens} tokens, its rounds {emitted}"


def _measured(record: Record) -> dict[str, Any]:
    rounds = record["per_round"]
    names = [field.name for field in fields(RoundRecord) if field.name in rounds]
    values = zip(*(rounds[name] for name in names), strict=False)
    facts: dict[str, Any] = {field.name: record.get(field.name) for field in fields(Generation)}
    facts["output_tokens"] = len(record["token_ids"]) + (record["stopped_by"] == "eos")
    facts["rounds"] = [RoundRecord(**dict(zip(names, row, strict=True))) for row in values]
    return measurements(Generation(**facts), drafts=record["draft_length"] > 0)


def check_scores(
    task: str,
    recorded: Sequence[str],
    metrics: Sequence[str],
    records: Sequence[Record],
    examples: Mapping[str, Example],
) -> Finding:
    """Score all stored texts of a task again by metrics that execute no code.

    Args:
        task: Its name.
        recorded: Names of the run's metrics.
        metrics: Those of them that score here.
        records: The samples of the task.
        examples: Its examples by id.
    """
    names = {short_name(metric) for metric in recorded}

    def compare(record: Record) -> str:
        if further := sorted(record["scores"].keys() - names):
            return f"{further[0]} is not a metric of the run"
        if record["sample_id"] not in examples:
            return "the example is missing"
        example = examples[record["sample_id"]]
        if (record.get("turn") or 0) > len(example.turns):
            return "the turn is missing"
        scored = score_text(metrics, record, example.scored(record), may_execute=False)
        scores = record["scores"] | {n: s for n, s in scored["scores"].items() if s is not None}
        quality = scores.get(record["quality_metric"])
        terms = {name: scored[name] for name in (BLEU_TERMS,) if name in scored}
        return difference(record, {"scores": scores, "quality": quality, **terms})

    compared = ((record, compare(record)) for record in records)
    return finding("texts scored again", f"{task}, {len(records):,} samples", compared)
