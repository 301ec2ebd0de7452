"""Simulated runs with a known law."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specbench.methods.parameters import PARAMETER_COLUMNS

#: Drafts proposed, expected acceptance where judged, accepted, and the target's own tokens: 1, or 0
#: if the text ended with an accepted draft.
Round = tuple[int, Sequence[float], int, int]
CELL: dict[str, Any] = {
    **{"run_id": "run", "pair": "mini", "task": "mini-math", "method": "sd"},
    **dict.fromkeys(PARAMETER_COLUMNS),
    **{"key": "k", "place": [0], "status": "ok", "temperature": 1.0, "draft_length": 5},
    "drafter": "model",
    **{"engine": "eager", "batch_size": 1, "session": 0},
}
ACCEPTANCE = (0.6, 0.75, 0.85, 0.85, 0.85, 0.85, 0.85, 0.85)  # by position


def record(rounds: Sequence[Round], sample: str = "a", **changes: Any) -> dict[str, Any]:
    """A sample with these rounds."""
    counts = {
        "proposed": [r[0] for r in rounds],
        "accepted": [r[2] for r in rounds],
        "emitted": [r[2] + r[3] for r in rounds],
        "expected": [list(r[1]) for r in rounds],
    }
    emitted = sum(counts["emitted"])
    return {
        **CELL,
        **{"sample_id": sample, "repeat": 0, "output_tokens": emitted, "status": "ok"},
        **{"token_ids": [5] * emitted, "per_round": counts},
        **changes,
    }


def autoregressive(sample: str, tokens: int, **changes: Any) -> dict[str, Any]:
    own = {"method": "autoregressive", "draft_length": 0, "drafter": None}
    return record([(0, [], 0, 1)] * tokens, sample, **{**own, **changes})


def simulated(
    rng: np.random.Generator, acceptance: Sequence[float], n: int, tokens: int
) -> list[Round]:
    """Rounds of a text: hard and easy contexts around the acceptance of each position."""
    rounds: list[Round] = []
    left = tokens
    while left:
        expected: list[float] = []
        accepted = 0
        for place in range(min(n, left)):
            expected.append(acceptance[place] + rng.choice([-0.1, 0.1]))
            if rng.random() >= expected[-1]:
                break
            accepted += 1
        inside = accepted == left  # the last of them ended the text
        rounds.append((accepted if inside else n, expected, accepted, 0 if inside else 1))
        left -= accepted + (not inside)
    return rounds


def write(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(record) + "\n" for record in records)
    (folder / "samples.jsonl").write_text("".join(lines))
    mini = "specbench/pairs/mini"
    config = {
        "pair": {"name": "mini", "target": f"{mini}/target", "draft": f"{mini}/draft"},
        "settings": {"temperature": 1.0, "top_k": None, "top_p": None},
        "progress": {"state": "complete", "samples": len(records)},
        "samples_planned": len(records),
        "tasks": [],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_simulated(
    folder: Path, lengths: Sequence[int] = (5,), prompts: int = 60, **changes: Any
) -> Path:
    """A run of autoregressive and of sd with acceptance that grows within a block."""
    rng = np.random.default_rng(0)
    records = []
    for i in range(prompts):
        tokens = int(rng.integers(30, 60))
        records.append(autoregressive(f"p{i}", tokens, **changes))
        for n in lengths:
            rounds = simulated(rng, ACCEPTANCE, n, tokens)
            records.append(record(rounds, f"p{i}", draft_length=n, **changes))
    return write(folder, records)
