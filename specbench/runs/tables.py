"""Tables of samples, written from the records of a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specbench.files import write_atomically
from specbench.runs import columns
from specbench.runs.columns import BLEU_TERMS, schema
from specbench.runs.folders import TIMINGS
from specbench.runs.records import ERROR, TABLE, latest_records, timed_records


def write_samples(folder: Path, into: Path | None = None) -> bool:
    """Write the tables of a run's samples from its records; return whether any was decoded.

    Args:
        folder: The run.
        into: Where to write them; None writes them into the run.
    """
    into = into or folder
    return _write(into / TABLE, latest_records(folder)) and write_timings(folder, into)


def write_timings(folder: Path, into: Path) -> bool:
    """Write the table of samples that were decoded again for their times, if there are any."""
    _write(into / TIMINGS, timed_records(folder))
    return True


def _write(path: Path, records: Iterable[Mapping[str, Any]]) -> bool:
    """Write a table of the samples that were decoded; return whether there are any."""
    rows = [_row(record) for record in records if record["status"] != ERROR]
    if not rows:
        return False
    measured = [name for name in schema(columns.MEASURED) if any(name in row for row in rows)]
    # Metrics without a declared column, as the user's own; ``quality`` has the quality metric.
    names = [*schema(columns.SAMPLES), *measured]
    further = dict.fromkeys(n for row in rows for n in row.get("scores") or {} if n in row)
    names += [name for name in further if name not in names]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
    return True


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of ``samples.csv``; metrics other than quality have their own columns.

    A score never replaces a column, whatever its name is.
    """
    scores = record.get("scores") or {}
    row = {**{n: s for n, s in scores.items() if n != record["quality_metric"]}, **record}
    if BLEU_TERMS in record:
        row[BLEU_TERMS] = " ".join(map(str, record[BLEU_TERMS]))
    return row
