"""Synthetic runs: samples, records and folders with round numbers, which a test may change.

A *sample* is a row of ``samples.csv``, a *record* a line of ``samples.jsonl``.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.statistics.summary import summarise
from specbench.methods.registry import PARAMETER_COLUMNS
from specbench.runs.frames import SAMPLES, typed
from specbench.runs.model import SampleRecord

#: Drafts proposed, expected acceptance where judged, accepted, and the target's own tokens: 1, or 0
#: if the text ended with an accepted draft.
Round = tuple[int, Sequence[float], int, int]

IDENTITY: dict[str, Any] = {
    **{"run_id": "run", "pair": "mini", "task": "mini-math", "method": "sd"},
    **dict.fromkeys(PARAMETER_COLUMNS),
    **{"temperature": 1.0, "draft_length": 5, "drafter": "model"},
    **{"engine": "eager", "batch_size": 1, "session": 0, "seed": 0, "repeat": 0},
    **{"sample_id": "a", "category": None, "turn": None},
}
SAMPLE: dict[str, Any] = {
    **IDENTITY,
    **{"quality_metric": "accuracy", "quality": 1.0, "device": "cpu", "stopped_by": "eos"},
    **{"prompt_tokens": 10, "output_tokens": 20, "rounds": 5},
    **{"proposed": 25, "accepted": 15, "judged": 25, "acceptance_length": 4.0},
    **{"draft_acceptance_rate": 0.6, "expected_acceptance": 0.6, "mean_weight": None},
    **{"prefill_seconds": 0.25, "decode_seconds": 0.75, "latency_seconds": 1.0},
    **{"draft_seconds": 0.25, "verify_seconds": 0.375, "accept_seconds": 0.0625},
    **{"tokens_per_second": 20.0, "repetition": 0.0},
}
RECORD: dict[str, Any] = {**IDENTITY, "key": "k", "place": [0], "status": "ok"}


def sample_record(**fields: Any) -> SampleRecord:
    return SampleRecord.model_validate(IDENTITY | fields)


def samples(*rows: dict[str, Any], **shared: Any) -> pd.DataFrame:
    """Return samples as they are read; a row has the differences from an ordinary ``sd`` sample."""
    table = pd.DataFrame([SAMPLE | shared | row for row in rows])
    return typed(table, SAMPLES, "the test")


def write_samples(folder: Path, table: pd.DataFrame) -> Path:
    folder.mkdir(parents=True)
    table.to_csv(folder / "samples.csv", index=False)
    summarise(table).to_csv(folder / "summary.csv", index=False)
    return folder


def rows(table: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, or of the samples in a run's folder."""
    with (table / "samples.csv" if table.is_dir() else table).open(newline="") as file:
        return list(csv.DictReader(file))


def records(run: Path) -> list[dict[str, Any]]:
    text = (run / "samples.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def make_head(folder: Path, **description: object) -> Path:
    """Write the parts of a head's files that are read before a model loads."""
    folder.mkdir(parents=True)
    (folder / "head.safetensors").touch()
    (folder / "head.json").write_text(json.dumps(description))
    return folder


def record(rounds: Sequence[Round], sample: str = "a", **changes: Any) -> dict[str, Any]:
    counts = {
        **{"proposed": [r[0] for r in rounds], "accepted": [r[2] for r in rounds]},
        **{"emitted": [r[2] + r[3] for r in rounds], "expected": [list(r[1]) for r in rounds]},
    }
    emitted = sum(counts["emitted"])
    tokens = {"output_tokens": emitted, "token_ids": [5] * emitted, "per_round": counts}
    return {**RECORD, "sample_id": sample, **tokens, **changes}


def write_records(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
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
