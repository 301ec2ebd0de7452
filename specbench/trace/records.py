"""Finding samples in the records of a run."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.analysis.frames import CELL
from specbench.errors import UsageError
from specbench.experiment.examples import Foreign, parse_line
from specbench.experiment.records import ERROR, RECORDS
from specbench.methods.labels import method_labels
from specbench.words import listed, meant, shown

Record = Mapping[str, Any]

_NEEDED = {"task", "method", "sample_id", "repeat", "draft_length", "head"}
_DECODED = {"token_ids", "per_round"}


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the records of ``samples.jsonl``, or of ``samples.jsonl.gz`` where it is packed.

    Raises:
        UsageError: There is no such file, it cannot be read, or a line is no sample.
    """
    path = next((p for n in (RECORDS, f"{RECORDS}.gz") if (p := folder / n).is_file()), None)
    if path is None:
        raise UsageError(f"{folder} holds no {RECORDS}: give the folder of a run")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):  # else a crash tore it
                    yield _parse(line, f"{path}, line {number},")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is no whole gzip file ({error}): copy it again") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check permissions") from error


def names(records: Sequence[Record]) -> list[str]:
    """Return what tells the methods of some records apart: label, and N where they differ in it."""
    labels = method_labels(records)
    several = len({record["draft_length"] for record in records} - {0}) > 1
    return [
        f"{label} N={record['draft_length']}" if several and record["draft_length"] else label
        for label, record in zip(labels, records, strict=True)
    ]


def find_sample(
    records: Iterable[Record],
    sample: str,
    *,
    task: str | None = None,
    method: str | None = None,
    repeat: int = 0,
) -> tuple[Record, str]:
    """Return one sample's record and its method's name.

    Args:
        records: All records of a run.
        sample: Its id.
        task: Its task; may be left out where only one has the id.
        method: Its method, or what ``names`` calls it; may be left out where there is one only.
        repeat: Which of its repeats, from 0.

    Raises:
        UsageError: There is none, or several; the message names the choices.
    """
    # A sample that failed and was run again is there twice, and the last one counts.
    latest = {
        (*(r.get(name) for name in CELL), r["repeat"]): r
        for r in records
        if r["sample_id"] == sample
    }
    found = list(latest.values())
    if not found:
        raise UsageError(f"no sample `{shown(sample)}` in this run: see sample_id in samples.csv")
    tasks = _only("--task", [r["task"] for r in found], lambda name: task in (None, name), task)
    found = [r for r in found if r["task"] in tasks]
    known = listed(str(number) for number in sorted({r["repeat"] for r in found}))
    found = [r for r in found if r["repeat"] == repeat]
    if not found:
        raise UsageError(f"the sample has no repeat {repeat}: choose from {known}")
    called = dict(zip(names(found), found, strict=True))
    chosen = _only(
        "--method",
        called,
        lambda name: method in (None, name, called[name]["method"], name.split(" N=")[0]),
        method,
    )
    record = called[chosen[0]]
    if record.get("status") == ERROR:
        raise UsageError(f"the sample could not be decoded ({record.get('error')}): run it again")
    return record, chosen[0]


def _only(
    option: str, known: Iterable[str], fits: Callable[[str], bool], given: str | None
) -> list[str]:
    """The one name that fits, as a list; several or none are refused."""
    known = list(dict.fromkeys(known))
    fitting = [name for name in known if fits(name)]
    if not fitting:
        raise UsageError(f"no such sample with {option} {given}; {meant(str(given), known)}")
    if len(fitting) > 1:
        raise UsageError(f"several samples match: choose with {option} from {listed(fitting)}")
    return fitting


def _parse(line: bytes, where: str) -> Record:
    try:
        record = parse_line(line)
    except Foreign as error:
        raise UsageError(f"{where} is no sample ({error}): run again") from error
    needed = _NEEDED if record.get("status") == ERROR else _NEEDED | _DECODED
    if missing := sorted(needed - record.keys()):
        raise UsageError(f"{where} is no sample (it has no {missing[0]}): run again")
    return record
