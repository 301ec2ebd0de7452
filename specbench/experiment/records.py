"""``samples.jsonl``: one record a sample, in the order in which they were finished."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.files import clear_errors

RECORDS = "samples.jsonl"

# The status of a sample.
OK = "ok"
UNSCORED = "unscored"  # decoded, but its metric failed
ERROR = "error"  # could not be decoded; in samples.jsonl, but in no table


def append_record(folder: Path, record: dict[str, Any]) -> None:
    """Add one sample and hand it to the operating system at once.

    Raises:
        RunError: It cannot be written, for instance because the disk is full.
    """
    path = folder / RECORDS
    with clear_errors(path), path.open("ab") as file:
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records as they were written; a last line torn by a crash is passed over."""
    with (folder / RECORDS).open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def latest_records(folder: Path) -> list[dict[str, Any]]:
    """Return one record a sample, of those tried again the last, in the order of the plan."""
    found = {key_of(record, number): record for number, record in enumerate(read_records(folder))}
    # Records of before there were places lie in the order of their plan.
    return sorted(found.values(), key=lambda record: record.get("place", ()))


def key_of(record: dict[str, Any], number: int) -> str:
    """Return the key of a record; those of before there were keys have none, but a number."""
    return str(record.get("key", number))


def cut_torn_line(folder: Path) -> None:
    """Cut a last line that a crash left without its end, so that the next one is whole.

    Raises:
        RunError: The file cannot be written.
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
