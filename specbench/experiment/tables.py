"""The tables of a run, written from its records."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.analysis.frames import BLEU_TERMS, MEASURED, SAMPLES, read_samples
from specbench.analysis.run_tables import summary_page
from specbench.analysis.summary import summarise
from specbench.experiment.records import ERROR, latest_records
from specbench.files import digits, write_atomically

TABLE = "samples.csv"
SUMMARY = "summary.csv"
DIGEST = "summary.md"


def write_tables(folder: Path) -> None:
    """Write the tables of a run from its ``samples.jsonl``; without a decoded sample, none."""
    rows = [_row(record) for record in latest_records(folder) if record["status"] != ERROR]
    if rows:
        measured = [name for name in MEASURED if any(name in row for row in rows)]
        text = io.StringIO()
        writer = csv.DictWriter(
            text, [*SAMPLES, *measured], extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(folder / TABLE, text.getvalue())
        samples = read_samples(folder)
        summary = summarise(samples)
        write_atomically(folder / SUMMARY, summary.to_csv(index=False, float_format=digits))
        write_atomically(folder / DIGEST, summary_page(samples, summary))


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as a row of ``samples.csv``: metrics beyond the primary one in their own columns."""
    scores = record["scores"]
    row = {**record, **{n: s for n, s in scores.items() if n != record["quality_metric"]}}
    if BLEU_TERMS in record:
        row[BLEU_TERMS] = " ".join(map(str, record[BLEU_TERMS]))
    return row
