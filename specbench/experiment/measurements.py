"""What a generation adds to a sample's record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from specbench.decoding.records import Generation


def measurements(generation: Generation) -> dict[str, Any]:
    """Return what a generation adds to a sample's record.

    These are columns of ``samples.csv``, None where a figure does not apply, and for
    ``samples.jsonl`` the text, the tokens and the counts of every round.
    """
    rounds = generation.rounds
    proposed = sum(r.proposed for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    emitted = sum(r.emitted for r in rounds)
    seconds = generation.prefill_seconds + generation.decode_seconds
    return {
        "prompt_tokens": generation.prompt_tokens,
        "output_tokens": generation.output_tokens,
        "rounds": len(rounds),
        "proposed": proposed,
        "accepted": accepted if proposed else None,
        "judged": sum(len(r.expected) for r in rounds) if proposed else None,
        "draft_acceptance_rate": accepted / proposed if proposed else None,
        "acceptance_length": emitted / len(rounds) if proposed else None,
        "expected_acceptance": _mean([value for r in rounds for value in r.expected]),
        "mean_weight": _mean([value for r in rounds for value in r.weights]),
        "prefill_seconds": generation.prefill_seconds,
        "decode_seconds": generation.decode_seconds,
        "draft_seconds": generation.draft_seconds,
        "verify_seconds": generation.verify_seconds,
        "accept_seconds": generation.accept_seconds,
        "latency_seconds": generation.latency_seconds,
        "tokens_per_second": generation.output_tokens / seconds if seconds else None,
        "stopped_by": generation.stopped_by,
        "text": generation.text,
        "token_ids": generation.token_ids,
        "per_round": {
            "proposed": [r.proposed for r in rounds],
            "accepted": [r.accepted for r in rounds],
            "emitted": [r.emitted for r in rounds],
            "rejected": [r.rejected for r in rounds],
            "agreed": [list(r.agreed) for r in rounds],
            "expected": [_rounded(r.expected) for r in rounds],
            "weights": [_rounded(r.weights) for r in rounds],
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 4) for value in values]
