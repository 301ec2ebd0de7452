"""The folder of a run: what it was asked, where it ran, every sample, and the tables.

``samples.jsonl`` grows by one line per sample while the run goes on; everything else is written
to a temporary file that then takes its place, so no table on disk is ever half a table.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from specbench.analysis.digest import digest
from specbench.analysis.frames import BLEU_TERMS, MEASURED, SAMPLES, read_samples
from specbench.analysis.summary import summarise
from specbench.errors import RunError, SpecbenchError, UsageError
from specbench.experiment.examples import EXAMPLES
from specbench.files import cannot_write, clear_errors, write_atomically

RESULTS = Path("results")
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
RECORDS = "samples.jsonl"
TABLE = "samples.csv"
SUMMARY = "summary.csv"
DIGEST = "summary.md"

# The status of a sample.
OK = "ok"
UNSCORED = "unscored"  # decoded, but its metric failed
ERROR = "error"  # could not be decoded; in samples.jsonl, but in no table


class Store:
    """A run's folder, open for writing; leaving the context writes the tables.

    The tables are written from the samples that exist, whether the run ended, failed or was
    interrupted; ``config.json`` says which. A run without any sample leaves no folder behind.

    Attributes:
        folder: The run's folder; its name is the run's id.
        done: Samples recorded so far.
        failed: Those of them that could not be decoded or scored.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Open an existing empty folder; see ``create``."""
        self.folder = folder
        self.done = 0
        self.failed = 0
        self._config = config
        self._made = False  # whether the folder is this run's to remove
        self._write_config("running")

    @classmethod
    def create(cls, output: Path | None, label: str, config: Mapping[str, Any]) -> Store:
        """Make the folder of a new run.

        Args:
            output: The folder, new or empty; without it ``results/<UTC time>-<label>``.
            label: Short description for the folder's name.
            config: The resolved configuration, for ``config.json``.

        Raises:
            UsageError: The folder holds something already, or cannot be written.
        """
        folder = output or _unused(RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{label}")
        made = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = any(folder.iterdir())
        except OSError as error:
            raise UsageError(cannot_write(folder, error)) from error
        if taken:
            raise UsageError(f"{folder} is not empty: name another folder with --output")
        try:
            store = cls(folder, config)
        except RunError as error:
            _remove(folder, made)
            raise UsageError(str(error)) from error
        store._made = made
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if not self.done:
            _remove(self.folder, self._made)
        elif kind is None:
            self._finish("complete")
        else:
            # The first problem is the one to report; a second one often follows from it.
            with suppress(SpecbenchError):
                self._finish("interrupted" if kind is KeyboardInterrupt else "failed")

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write ``environment.json``."""
        write_atomically(self.folder / ENVIRONMENT, as_json(environment))

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one sample to ``samples.jsonl`` and hand it to the operating system at once.

        Raises:
            RunError: It cannot be written, for instance because the disk is full.
        """
        path = self.folder / RECORDS
        with clear_errors(path), path.open("ab") as file:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self.done += 1
        self.failed += record["status"] != OK

    def _finish(self, state: str) -> None:
        write_tables(self.folder)
        self._write_config(state)

    def _write_config(self, state: str) -> None:
        progress = {"state": state, "samples": self.done, "failed": self.failed}
        write_atomically(self.folder / CONFIG, as_json({**self._config, "progress": progress}))


def write_tables(folder: Path) -> None:
    """Write the tables of a run from its ``samples.jsonl``; without a decoded sample, none.

    Raises:
        RunError: They cannot be written; no table on disk is half a table.
    """
    rows = [_row(r) for r in read_records(folder) if r["status"] != ERROR]
    if rows:
        measured = [name for name in MEASURED if any(name in row for row in rows)]
        write_atomically(folder / TABLE, _csv([*SAMPLES, *measured], rows))
        samples = read_samples(folder)
        summary = summarise(samples)
        write_atomically(folder / SUMMARY, summary.to_csv(index=False))
        write_atomically(folder / DIGEST, digest(samples, summary))


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of ``samples.jsonl``; a last line torn by a crash is passed over."""
    with (folder / RECORDS).open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def failures(folder: Path) -> Iterator[str]:
    """Yield, for every sample that failed, why."""
    return (record["error"] for record in read_records(folder) if record["status"] != OK)


def cut_prompts(folder: Path) -> int:
    """Return how many prompts of a run were cut to the limit."""
    return len({(r["task"], r["sample_id"]) for r in read_records(folder) if r.get("prompt_cut")})


def unfinished(folder: Path) -> str | None:
    """Return how a run that is not complete ended, in words; None for a complete one."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        progress, planned = config["progress"], config["samples_planned"]
    except (OSError, ValueError, KeyError):
        return None  # tables without a readable configuration still speak for themselves
    if progress["state"] == "complete":
        return None
    return f"{progress['state']}, {progress['samples']} of {planned} samples"


def newest_run(root: Path = RESULTS) -> Path:
    """Return the run under ``root`` whose table was written last.

    Raises:
        UsageError: There is none.
    """
    tables = sorted(root.glob(f"*/{TABLE}"), key=lambda path: path.stat().st_mtime)
    if not tables:
        raise UsageError(f"there is no run under {root}: name a run's folder, or start with a run")
    return tables[-1].parent


def _unused(folder: Path) -> Path:
    """Return the folder, or the first of ``folder-2``, ``folder-3`` ... that does not exist."""
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def _remove(folder: Path, made: bool) -> None:
    """Remove a run that recorded nothing, and its folder where the run made it."""
    with suppress(OSError):
        for name in (CONFIG, ENVIRONMENT, EXAMPLES, RECORDS):
            (folder / name).unlink(missing_ok=True)
        if made:
            folder.rmdir()


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as a row of ``samples.csv``: metrics beyond the primary one in their own columns."""
    scores = record.get("scores", {})
    row = {**record, **{n: s for n, s in scores.items() if n != record["quality_metric"]}}
    if BLEU_TERMS in record:
        row[BLEU_TERMS] = " ".join(map(str, record[BLEU_TERMS]))
    return row


def as_json(value: Mapping[str, Any]) -> str:
    """Return what a JSON file of a run holds."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _csv(columns: Collection[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(
        text, columns, extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
