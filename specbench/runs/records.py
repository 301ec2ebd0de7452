"""The samples of a run: its JSON Lines files, and the tables derived from them.

``samples.jsonl`` contains the samples in the order in which they finished. ``examples.jsonl``
contains the references, so that a run can be scored again without models and data.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import ValidationError, create_model

from specbench.errors import UsageError, require
from specbench.files import copies, open_binary, packing, replacing, stored, sync, write_atomically
from specbench.methods.registry import METHOD_COLUMNS
from specbench.runs.columns import BLEU_TERMS, SAME_PROMPT
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.running import still_running
from specbench.runs.tables import schema
from specbench.schema import StrictModel, refusal
from specbench.tasks.example import Example, repeated_prompts

log = logging.getLogger(__name__)

RECORDS = "samples.jsonl"
TIMED_RECORDS = "timings.jsonl"  # samples decoded again for their times only, without rounds
EXAMPLES = "examples.jsonl"
TABLE = "samples.csv"
TIMINGS = "timings.csv"  # the table of samples that were decoded again for their times only
SUMMARY = "summary.csv"
DIGEST = "summary.md"

# These columns identify a sample within its run.
NAMES = (
    "task",
    *METHOD_COLUMNS,
    "temperature",
    "draft_length",
    "drafter",
    "sample_id",
    "turn",
    "repeat",
)
LONGEST_LINE = 2**24  # bytes; a text of 32,000 tokens takes about 1.5 MB
MOST_NAMED = 5  # damaged lines in a message
MOST_DAMAGED = 10_000  # lines; a crash damages a few, a file made to fill the memory millions
# These columns are needed to trace a text token by token.
TRACED = frozenset((*METHOD_COLUMNS, "repeat", "draft_length", "drafter", "token_ids", "per_round"))


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, plain or packed; only the last one may lack its line end.

    Raises:
        UsageError: The file cannot be read, it is packed and damaged, or a line is longer than
            ``LONGEST_LINE``: as JSON it would take up to fifty times as much memory.
    """
    try:
        with open_binary(path) as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    size = f"{LONGEST_LINE >> 20} MiB"
                    raise UsageError(f"{path}:{number} is longer than {size}: remove the line")
                yield line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check permissions") from error


def record_files(folder: Path) -> list[Path]:
    """Return the files with a run's records, the plain ``samples.jsonl`` before packed copies."""
    files = [path for path in copies(folder / RECORDS) if path.is_file()]
    if not files:
        raise UsageError(lacks(folder, RECORDS))
    return files


def lacks(folder: Path, name: str) -> str:
    """Return the error message for a file that is missing from a folder."""
    files = ("samples.csv", "summary.csv", "config.json")
    present = [file for file in files if stored(folder / file).exists()]
    if state := still_running(folder):
        return f"{folder} is {state}: wait until it ends"
    again = f"repeat its command with --output {folder}"
    if "config.json" in present and stored(folder / "samples.jsonl").exists():
        if present == ["config.json"]:
            return f"{folder} is unfinished: {again} to resume it"
        return f"{folder} is a run without its {name}: {again}, which writes it"
    if present:
        return f"{folder} is a run without its {name}: put that file there, or measure it again"
    return f"{folder} holds no {name}: give the folder of a finished run"


def read_records(
    path: Path, needed: Collection[str] = (), damaged: list[int] | None = None
) -> Iterator[SampleRecord]:
    """Yield the records of a run's folder, or of one of its files, in the order of the file.

    Damaged lines are left out; their numbers, from 1, are appended to ``damaged``. Without this
    list a warning names them, except an unfinished last line: the run may be writing it.

    Raises:
        UsageError: There are no records, they cannot be read, or a decoded sample lacks one of the
            ``needed`` fields.
    """
    path = record_files(path)[0] if path.is_dir() else path
    left_out: list[int] = []
    for number, line in enumerate(read_lines(path), start=1):
        record = SampleRecord.parse(line)
        if record is None:
            if damaged is not None or line.endswith(b"\n"):
                left_out.append(number)
            if len(left_out) > MOST_DAMAGED:
                raise UsageError(
                    f"{path} has more than {MOST_DAMAGED} damaged lines: copy it again"
                )
            continue
        missing = {*needed} - record.model_fields_set if record.status != ERROR else ()
        if missing:
            raise UsageError(
                f"{path}, line {number}, is not a sample (it lacks {min(missing)}): run again"
            )
        yield record
    if damaged is not None:
        damaged += left_out
    elif left_out:
        log.warning(
            f"{path}: {lines_named(left_out)} damaged and left out; to decode the samples again, "
            f"run the command of this run again with --output {path.parent}"
        )


def lines_named(numbers: Sequence[int]) -> str:
    """Return line numbers with a verb, such as "line 3 is" or "lines 3, 5 and 9 more are"."""
    if len(numbers) == 1:
        return f"line {numbers[0]} is"
    names = ", ".join(map(str, numbers[:MOST_NAMED]))
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return f"lines {names}{more} are"


def set_aside(path: Path, damaged: Collection[int]) -> Path:
    """Move damaged lines, given by number, to the file beside it; return that file.

    A line is in one of the files at any moment, even if the process is killed.
    """
    aside = damaged_file(path)
    with replacing(path) as file, packing(path, file) as records, aside.open("ab") as moved:
        for number, line in enumerate(read_lines(path), start=1):
            if number in damaged:
                moved.write(line.removesuffix(b"\n") + b"\n")
            else:
                records.write(line)
        moved.flush()
        sync(aside)
    return aside


def damaged_file(path: Path) -> Path:
    """Return the file for the damaged lines of a file of records, such as ``samples.damaged``."""
    return path.with_name(f"{path.name.partition('.')[0]}.damaged")


def replaces(record: SampleRecord, key: str, status: str) -> bool:
    """Return whether an attempt replaces one with this key and status: no failure does a text."""
    return record.status != ERROR or record.key != key or status == ERROR


def latest_records(path: Path, needed: Collection[str] = ()) -> list[SampleRecord]:
    """Return one record per sample, the last attempt, in the order of the plan."""
    latest: dict[tuple[Any, ...], SampleRecord] = {}
    for record in read_records(path, needed):
        before = latest.setdefault(names := names_of(record), record)
        if replaces(record, before.key, before.status):
            latest[names] = record
    return sorted(latest.values(), key=lambda record: (record.place, record.turn or 0))


def timed_records(folder: Path) -> list[SampleRecord]:
    """Return the records of samples that were decoded again for their times only, if any."""
    path = stored(folder / TIMED_RECORDS)
    return latest_records(path) if path.exists() else []


def names_of(record: SampleRecord) -> tuple[Any, ...]:
    """Return the values that identify a sample within its run, independent of its key."""
    timed = (record.timing, record.session) if record.timing else ()
    engine = (record.cell_engine,) if record.cell_engine else ()
    return (*(getattr(record, name) for name in NAMES), *timed, *engine)


def write_examples(folder: Path, tasks: Mapping[str, Iterable[Example]]) -> None:
    """Write ``examples.jsonl`` with the examples by task name."""
    texts = (
        json.dumps({"task": task, **asdict(example)}, ensure_ascii=False) + "\n"
        for task, examples in tasks.items()
        for example in examples
    )
    lines = [text.encode(errors="replace") for text in texts]  # surrogates
    too_long = f"a prompt with its data has more than {LONGEST_LINE >> 20} MiB: shorten it"
    require(all(len(line) <= LONGEST_LINE for line in lines), too_long)
    write_atomically(folder / EXAMPLES, b"".join(lines))


def read_examples(folder: Path) -> dict[str, dict[str, Example]]:
    """Return the examples of a run by task name and id."""
    path = stored(folder / EXAMPLES)
    if not path.exists():
        raise UsageError(
            f"{folder} has no {EXAMPLES} with the references: give a run of this version of "
            "specbench"
        )
    examples: dict[str, dict[str, Example]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            values = dict(_ExampleLine.model_validate_json(line))
        except ValidationError as error:
            raise refusal(_ExampleLine, error, f"{path}, line {number}") from error
        task = values.pop("task")
        examples.setdefault(task, {})[values["id"]] = Example(**values)
    return examples


_FIELDS: dict[str, Any] = {
    name: (kind, getattr(Example, name, ...)) for name, kind in get_type_hints(Example).items()
}
_ExampleLine = create_model("_ExampleLine", __base__=StrictModel, task=(str, ...), **_FIELDS)


def prompts_of(*folders: Path) -> dict[tuple[str, str], str]:
    """Return the first example with the same prompt by task and id, over the shards of a run."""
    tasks: dict[str, dict[str, Example]] = {}
    for folder in folders:
        with suppress(UsageError):  # an older run has none, and `verify` names a damaged file
            for task, by_id in read_examples(folder).items():
                tasks.setdefault(task, {}).update(by_id)
    repeated = {task: repeated_prompts(by_id.values()) for task, by_id in tasks.items()}
    return {(task, name): first for task, ids in repeated.items() for name, first in ids.items()}


def write_samples(folder: Path, into: Path | None = None) -> bool:
    """Write the tables of a run's samples into it or a folder; return whether any was decoded."""
    target, same_prompts = into or folder, prompts_of(folder)
    if not write_sample_table(target / TABLE, latest_records(folder), same_prompts):
        return False
    write_sample_table(target / TIMINGS, timed_records(folder), same_prompts)
    return True


def write_sample_table(
    path: Path, records: Iterable[SampleRecord], same_prompts: Mapping[tuple[str, str], str]
) -> bool:
    """Write a table of the samples that were decoded; return whether there are any."""
    rows = [_row(record) for record in records if record.status != ERROR]
    for row in rows:
        row.pop(SAME_PROMPT, None)  # the examples decide, whatever a record says
        if first := same_prompts.get((row["task"], row["sample_id"])):
            row[SAME_PROMPT] = first
    columns = [name for name in schema("measured") if any(name in row for row in rows)]
    # Metrics without a declared column, as the user's own; ``quality`` has the quality metric.
    further = (n for row in rows for n in row.get("scores") or {} if n in row)
    names = [*dict.fromkeys((*schema("samples"), *columns, *further))]
    if rows:
        text = io.StringIO()
        # By default rows end in "\r\n", so that a "\r" in a text is quoted, too.
        lines: Any = SimpleNamespace(write=lambda row: text.write(row.removesuffix("\r\n") + "\n"))
        writer = csv.DictWriter(lines, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(path, text.getvalue())
    return bool(rows)


def _row(record: SampleRecord) -> dict[str, Any]:
    """Return a row of ``samples.csv``, in which no further metric replaces a column."""
    scores = {n: s for n, s in (record.scores or {}).items() if n != record.quality_metric}
    row = scores | record.present()
    if record.bleu_terms:
        row[BLEU_TERMS] = " ".join(map(str, record.bleu_terms))
    return row
