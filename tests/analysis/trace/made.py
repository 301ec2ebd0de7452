"""Records of samples whose tokens are bytes, so that their text is known."""

from collections.abc import Sequence
from typing import Any

from ...synthetic import RECORD

Round = tuple[str, str, str]


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def made(*rounds: Round, end: bool = False, weight: float | None = None, **changes: Any) -> Any:
    """Return a record of rounds: (accepted text, rejected byte or "", token of the target or "").

    Of an accepted text, capital letters are mismatches. The acceptance probability at a place is
    0.9, then 0.8 and so on; the weight grows by 0.1.
    """
    ids: list[int] = []
    counts: dict[str, list[Any]] = {}
    for accepted, rejected, emitted in rounds:
        drafted = accepted.encode()
        judged = len(drafted) + bool(rejected)
        ids += [*drafted, *emitted.encode()]
        found = {
            "proposed": 5 if judged else 0,
            "accepted": len(drafted),
            "emitted": len(drafted) + len(emitted.encode()),
            "rejected": rejected.encode()[0] if rejected else None,
            "agreed": [not 65 <= byte <= 90 for byte in drafted],
            "expected": [0.9 - 0.1 * place for place in range(judged)],
            "weights": [] if weight is None else [weight + 0.1 * n for n in range(judged)],
        }
        for name, value in found.items():
            counts.setdefault(name, []).append(value)
    if end:
        ids.pop()
    return {
        **RECORD,
        **{"run_id": "r", "pair": "p", "task": "sums", "quality_metric": "accuracy"},
        **{"token_ids": ids, "per_round": counts, "mean_weight": weight, "quality": 1.0},
        **changes,
    }
