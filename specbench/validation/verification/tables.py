"""Counts and scores of a run follow from its rounds and texts, and its tables from its samples."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from specbench.analysis.written import write_summary, write_tables
from specbench.decoding.records import Generation
from specbench.errors import UsageError, first_line
from specbench.experiment.measurements import columns_of, recorded_rounds, score_text
from specbench.files import open_binary, stored
from specbench.plugins import short_name
from specbench.runs import records as run_files
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.frames import SUMMARY as SUMMARY_COLUMNS
from specbench.runs.frames import require_columns, rows_of
from specbench.runs.model import SampleRecord
from specbench.runs.tables import dictionary
from specbench.tasks.example import Example
from specbench.validation.findings import Finding, Record, difference, finding, finding_of

#: Largest error of a mean of probabilities that are stored with four digits.
STORED = 0.5e-4 + 1e-9


def check_counts(records: Sequence[SampleRecord]) -> Finding:
    """Check that the counts and rates of samples follow from their rounds and tokens."""

    def compare(record: SampleRecord) -> str:
        try:
            recorded = record.model_dump(exclude_unset=True)
            text: dict[str, Any] = {f.name: getattr(record, f.name) for f in fields(Generation)}
            text |= {"output_tokens": _tokens(record), "rounds": recorded_rounds(record.per_round)}
            counts = columns_of(Generation(**text), drafts=record.draft_length > 0)
            counts["zero_p"] = record.zero_p  # rounds do not tell; decoding again does
            return difference(recorded, counts, STORED) or _impossible(record)
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return "its rounds or counts are not whole"

    compared = ((vars(record), compare(record)) for record in records)
    return finding("counts follow from rounds", f"{len(records):,} samples", compared)


def _impossible(record: SampleRecord) -> str:
    """Return what no decoder does: negative times, or counts of rounds that do not fit."""
    for name, value in vars(record).items():
        if name.endswith("_seconds") and isinstance(value, float) and value < 0:
            return f"{name} is {value:g}"
    rounds = record.per_round
    counts = (rounds.proposed or (), rounds.accepted or (), rounds.emitted or ())
    for number, (proposed, accepted, emitted) in enumerate(zip(*counts, strict=True)):
        if not accepted <= proposed <= record.draft_length:
            return f"round {number} has {accepted} of {proposed} drafts accepted"
        if emitted not in (accepted, accepted + 1):
            return f"round {number} has {accepted} accepted drafts and {emitted} tokens"
    tokens, emitted = _tokens(record), sum(rounds.emitted or ())
    if (record.zero_p or 0) > tokens:
        return f"zero_p is {record.zero_p}, of {tokens} tokens"
    return "" if emitted == tokens else f"the text has {tokens} tokens, its rounds {emitted}"


def _tokens(record: SampleRecord) -> int:
    """Return the number of tokens of a text, with the end token if there was one."""
    return len(record.token_ids or ()) + (record.stopped_by == "eos")


def check_scores(
    task: str,
    recorded: Sequence[str],
    metrics: Sequence[str],
    records: Sequence[SampleRecord],
    examples: Mapping[str, Example],
) -> Finding:
    """Score all stored texts of a task again by those of the recorded metrics that score here."""
    names = {short_name(metric) for metric in recorded}

    def compare(record: SampleRecord) -> str:
        recorded_scores = record.scores or {}
        if further := sorted(recorded_scores.keys() - names):
            return f"{further[0]} is not a metric of the run"
        if record.sample_id not in examples:
            return "the example is missing"
        example = examples[record.sample_id]
        if (record.turn or 0) > len(example.turns):
            return "the turn is missing"
        scored = score_text(metrics, record, example.scored(record), may_execute=False)
        scores = recorded_scores | {n: s for n, s in scored["scores"].items() if s is not None}
        derived = {"scores": scores, "quality": scores.get(record.quality_metric or "")}
        if BLEU_TERMS in scored:
            derived[BLEU_TERMS] = scored[BLEU_TERMS]
        return difference(vars(record), derived)

    compared = ((vars(record), compare(record)) for record in records)
    return finding("texts scored again", f"{task}, {len(records):,} samples", compared)


# An id or a category may be "nan" or "1.0".
_NAMES = {column.name for column in dictionary() if column.type == "text"}
ALWAYS = {"quality", "draft_acceptance_rate", "tokens_per_second"}  # of tables of every version
_CELL = [name for name in SUMMARY_COLUMNS if name not in {"value", "ci_low", "ci_high", "n"}]


def check_tables(folder: Path, source: str) -> Iterator[Finding]:
    """Write the tables again into another folder, and compare them.

    ``source`` is the file that they follow from: the samples, or their table if they are gone.
    """
    with TemporaryDirectory() as temporary:
        rebuilt = Path(temporary)
        compare = partial(_compare, folder, rebuilt)
        timed = stored(folder / run_files.TIMED_RECORDS).is_file()
        sources = [run_files.TABLE] if source == run_files.TABLE else []
        for name in [*sources, run_files.TIMINGS] if not timed else sources:
            if (file := stored(folder / name)).is_file():
                shutil.copy(file, rebuilt)
        if source == run_files.TABLE:
            prompts = run_files.prompts_of(folder)
            timed_records = run_files.timed_records(folder)
            run_files.write_sample_table(rebuilt / run_files.TIMINGS, timed_records, prompts)
            write_summary(rebuilt, run=folder)
        else:
            write_tables(folder, rebuilt)
            if not (rebuilt / run_files.TABLE).is_file():
                raise UsageError(f"{folder / source} has no decoded sample: give another run")
            yield compare(run_files.TABLE, run_files.NAMES, source)
        if timed and (rebuilt / run_files.TIMINGS).is_file():
            keys = (*run_files.NAMES, "timing", "session")
            yield compare(run_files.TIMINGS, keys, run_files.TIMED_RECORDS)
        yield compare(run_files.SUMMARY, _CELL, source)
        if (page := folder / run_files.DIGEST).is_file():
            recorded = page.read_text(encoding="utf-8", errors="replace").splitlines()
            derived = (rebuilt / run_files.DIGEST).read_text(encoding="utf-8").splitlines()
            lines = enumerate(zip_longest(recorded, derived, fillvalue=""), start=1)
            older = "; if an earlier version wrote the page, `specbench score RUN` writes it anew"
            faults = [
                f"line {n}{difference(*pair)}{older}" for n, pair in lines if pair[0] != pair[1]
            ]
        else:
            faults = ["is missing: `specbench score RUN` writes it anew"]
        yield finding_of(f"{run_files.DIGEST} follows from {source}", run_files.DIGEST, faults)


def _compare(folder: Path, again: Path, name: str, keys: Sequence[str], source: str) -> Finding:
    """Compare the rows of a table; what all of it lacks may be newer, but for ``ALWAYS``."""
    path = stored(folder / name)
    if not path.is_file():
        raise UsageError(run_files.lacks(path.parent, path.name))
    recorded, rebuilt = _rows(path, keys), _rows(again / name, keys)
    metrics = {None, *ALWAYS, *(row.get("metric") for row in recorded.values())}

    def compare() -> Iterator[tuple[Record, str]]:
        for key, row in recorded.items():
            further = [name for name in row if key in rebuilt and name not in rebuilt[key]]
            absent = f"is not in {source}" if key[-1] == 1 else "repeats an earlier row"
            text = difference(row, rebuilt[key]) if key in rebuilt else absent
            if lacking := sorted((rebuilt.get(key, {}).keys() & ALWAYS) - row.keys()):
                text = f"has no column {lacking[0]}"
            yield row, f"{further[0]} is not in {source}" if further else text
        for key, row in rebuilt.items():
            if key not in recorded and row.get("metric") in metrics:
                yield row, f"is missing from {path.name}"

    return finding(f"{path.name} follows from {source}", f"{len(recorded):,} rows", compare())


def _rows(path: Path, keys: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of a table, with numbers as numbers.

    A row's name has the values of its ``keys`` and a number, by which copies of a row differ.
    """
    try:
        with open_binary(path) as file:
            rows = rows_of(pd.read_csv(file, dtype=str, keep_default_na=False).fillna(""))
        require_columns(rows[0] if rows else keys, keys, path)
    except ValueError as error:  # pandas' own errors of parsing, and of text that is not UTF-8
        raise UsageError(f"{path} is not a readable CSV file ({first_line(error)})") from error
    copies: Counter[tuple[Any, ...]] = Counter()
    named_rows = {}
    for texts in rows:
        row = {name: text if name in _NAMES else _parsed(text) for name, text in texts.items()}
        name = tuple(row.get(key) for key in keys)
        copies[name] += 1
        named_rows[(*name, copies[name])] = row
    return named_rows


def _parsed(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
