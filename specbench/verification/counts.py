"""Counts and scores of a run follow from its rounds and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from specbench.analysis.columns import BLEU_TERMS
from specbench.check.findings import Finding
from specbench.decoding.records import Generation, RoundRecord
from specbench.example import Example
from specbench.experiment.measurements import measurements, score_text
from specbench.verification.differences import Record, difference, finding

#: Largest error of a mean of probabilities that are stored with four digits.
STORED = 0.5e-4 + 1e-9


def check_counts(records: Sequence[Record]) -> Finding:
    """Check that the counts and rates of samples follow from their rounds and tokens."""
    compared = ((record, difference(record, _measured(record), STORED)) for record in records)
    return finding("counts follow from rounds", f"{len(records):,} samples", compared)


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
    metrics: Sequence[str],
    records: Sequence[Record],
    examples: Mapping[str, Example],
) -> Finding:
    """Score all stored texts of a task again by metrics that execute no code."""

    def compare(record: Record) -> str:
        if record["sample_id"] not in examples:
            return "the example is missing"
        example = examples[record["sample_id"]]
        if (record.get("turn") or 0) > len(example.turns):
            return "the turn is missing"
        example = example.scored(record.get("turn"), record.get("greedy"))
        made = score_text(metrics, record["text"], example, may_execute=False)
        scores = record["scores"] | {n: s for n, s in made["scores"].items() if s is not None}
        quality = scores.get(record["quality_metric"])
        terms = {name: made[name] for name in (BLEU_TERMS,) if name in made}
        return difference(record, {"scores": scores, "quality": quality, **terms})

    compared = ((record, compare(record)) for record in records)
    return finding("texts scored again", f"{task}, {len(records):,} samples", compared)
