"""``samples.jsonl``: one record a sample, in the order in which they were finished."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench.analysis.frames import PARAMETERS, lacks
from specbench.errors import UsageError
from specbench.experiment.lines import Foreign, parse_line, read_lines
from specbench.files import clear_errors

RECORDS = "samples.jsonl"
PACKED = f"{RECORDS}.gz"

# The status of a sample.
OK = "ok"
UNSCORED = "unscored"  # decoded, but its metric failed
ERROR = "error"  # could not be decoded; in samples.jsonl, but in no table

# What tells a sample from the others of its run, in the tables.
_NAMES = ("task", "method", *PARAMETERS, "temperature", "draft_length", "sample_id", "repeat")
_ALWAYS = frozenset(("key", "place", "run_id", "status", "task", "sample_id"))
# What is looked at where a text is followed token by token.
TRACED = frozenset(("method", *PARAMETERS, "repeat", "draft_length", "token_ids", "per_round"))


def append_record(folder: Path, record: dict[str, Any]) -> None:
    """Add one sample and hand it to the operating system at once.

    Raises:
        SpecbenchError: It cannot be written, for instance because the disk is full.
    """
    path = folder / RECORDS
    with clear_errors(path), path.open("ab") as file:
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def record_files(folder: Path) -> list[Path]:
    """Return the files with a run's records, ``samples.jsonl`` before the packed one.

    Raises:
        UsageError: There is none.
    """
    found = [path for name in (RECORDS, PACKED) if (path := folder / name).is_file()]
    if not found:
        raise UsageError(lacks(folder, RECORDS))
    return found


def read_records(folder: Path, needed: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the records as they were written; a last line torn by a crash is passed over.

    Args:
        folder: A run's folder.
        needed: What every record of a decoded sample must have.

    Raises:
        UsageError: There are none, they cannot be read, or a line is no sample.
    """
    path = record_files(folder)[0]
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = parse_line(line)
            wanted = _ALWAYS if record.get("status") == ERROR else _ALWAYS.union(needed)
            if missing := sorted(wanted - record.keys()):
                raise Foreign(f"it has no {missing[0]}")
        except Foreign as error:
            raise UsageError(f"{path}, line {number}, is no sample ({error}): run again") from error
        yield record


def latest_records(folder: Path, needed: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return one record a sample, of those tried again the last, in the order of the plan.

    For the arguments and what is raised see ``read_records``.
    """
    found = {names_of(record): record for record in read_records(folder, needed)}
    return sorted(found.values(), key=lambda record: record["place"])


def names_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells a sample from the others of its run, whatever its key."""
    return tuple(record.get(name) for name in _NAMES)


def cut_torn_line(folder: Path) -> None:
    """Cut a last line that a crash left without its end, so that the next one is whole.

    Raises:
        SpecbenchError: The file cannot be written.
    """
    path = folder / RECORDS
    if not path.exists():
        return
    with clear_errors(path), path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def failures(folder: Path) -> Iterator[str]:
    """Yield, for every sample that failed, why."""
    return (record["error"] for record in latest_records(folder) if record["status"] != OK)


def cut_prompts(folder: Path) -> int:
    """Return how many prompts of a run were cut to the limit."""
    return len({(r["task"], r["sample_id"]) for r in read_records(folder) if r.get("prompt_cut")})
