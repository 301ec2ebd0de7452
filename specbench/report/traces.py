"""The traces of a report: of the first prompts of each task, by every method, within bounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.folders import read_run
from specbench.experiment.records import ERROR, TRACED
from specbench.report.pages import trace_article
from specbench.trace.tokens import Decode, Unreadable
from specbench.trace.trace import Record, run_decoder, sample_names, trace

PROMPTS = 5  # of each task
LARGEST = 2_500_000  # characters of all of them together
_NAMED = ("task", "method", "draft_length")
_EXAMPLE = 6000  # of a prompt or a reference


class Told(NamedTuple):
    """All traces of one prompt."""

    task: str
    sample: str
    prompt: str
    reference: str
    traces: list[tuple[str, Markup]]  # the method's name, and its trace


class Traces(NamedTuple):
    """The traces by prompt, and notes on what is missing."""

    prompts: list[Told]
    notes: list[str]


class _Run(NamedTuple):
    name: str | None  # where there are several runs
    decode: Decode
    examples: Mapping[str, Mapping[str, Example]]
    samples: Mapping[tuple[str, str], Sequence[Record]]  # by task and prompt


def collect_traces(folders: Sequence[Path], cells: pd.DataFrame) -> Traces:
    """Return the traces of the first prompts of each task.

    The first prompts of all tasks come before the second ones, so that tasks lose the same number
    of prompts where there is too much.

    Args:
        folders: Folders of runs; one without traces is skipped with a note.
        cells: What is shown of them; see ``tables.read_cells``.
    """
    runs, notes = [], []
    wanted = set(cells[list(_NAMED)].itertuples(index=False, name=None))
    for folder in folders:
        try:
            runs.append(_open(folder, folder.name if len(folders) > 1 else None, wanted))
        except UsageError as error:
            notes.append(f"no traces of {folder.name}: {error}")
    told: dict[tuple[str, str], Told] = {}
    length = 0
    for run, (task, sample) in _in_turn(runs):
        try:
            shown = list(_articles(run, run.samples[task, sample]))
        except (UsageError, Unreadable) as error:
            notes.append(f"no trace of {task}, {sample}: {error}")
            continue
        length += sum(len(article) for _, article in shown)
        if length > LARGEST:
            notes.append("traces of later prompts are omitted: `specbench trace` shows them")
            break
        found = told.setdefault((task, sample), _told(task, sample, run))
        found.traces.extend(shown)
    return Traces(list(told.values()), list(dict.fromkeys(notes)))


def _open(folder: Path, name: str | None, wanted: Collection[tuple[Any, ...]]) -> _Run:
    run = read_run(folder)
    records = run.records(TRACED)
    samples = _first(r for r in records if tuple(r.get(name) for name in _NAMED) in wanted)
    return _Run(name, run_decoder(folder), run.examples, samples)


def _first(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """The records of the first prompts of each task, by every cell."""
    found: dict[tuple[str, str], list[Record]] = {}
    begun: dict[str, set[str]] = {}
    for record in records:
        if record["repeat"] or record.get("status") == ERROR:
            continue
        task, sample = record["task"], record["sample_id"]
        known = begun.setdefault(task, set())
        if sample in known or len(known) < PROMPTS:
            known.add(sample)
            found.setdefault((task, sample), []).append(record)
    return found


def _in_turn(runs: Sequence[_Run]) -> Iterator[tuple[_Run, tuple[str, str]]]:
    """Every run's prompts, the first ones of all tasks before the second ones."""
    turns: list[tuple[int, _Run, tuple[str, str]]] = []
    for run in runs:
        counts: dict[str, int] = {}
        for task, sample in run.samples:
            counts[task] = counts.get(task, 0) + 1
            turns.append((counts[task], run, (task, sample)))
    yield from ((run, key) for _, run, key in sorted(turns, key=lambda turn: turn[0]))


def _articles(run: _Run, records: Sequence[Record]) -> Iterator[tuple[str, Markup]]:
    for record, name in zip(records, sample_names(records), strict=True):
        yield name, trace_article(trace(record, name, run.decode), run.name)


def _told(task: str, sample: str, run: _Run) -> Told:
    example = run.examples.get(task, {}).get(sample)
    if example is None:
        return Told(task, sample, "", "", [])
    return Told(task, sample, _cut(example.prompt), _cut(example.reference or ""), [])


def _cut(text: str) -> str:
    return text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]} ..."
