"""The traces of a report: the first prompts of each task by every method, up to a limit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.folders import Run
from specbench.report.pages import trace_article
from specbench.runs.records import ERROR, TRACED
from specbench.trace.tokens import Decode, Unreadable
from specbench.trace.trace import Record, run_decoder, sample_names, trace

PROMPTS = 5  # per task
LARGEST = 2_500_000  # characters of all traces together
_NAMED = ("task", "method", "draft_length", "drafter")
_EXAMPLE = 6000  # characters of a prompt or a reference

Key = tuple[str, str]  # a task and a prompt


class PromptTraces(NamedTuple):
    """All traces of one prompt."""

    task: str
    sample: str
    prompt: str
    reference: str
    traces: list[tuple[str, Markup]]  # the method's name, and its trace


class Traces(NamedTuple):
    """The traces by prompt, and notes on what is missing."""

    prompts: list[PromptTraces]
    notes: list[str]


class _Run(NamedTuple):
    name: str | None  # None if there is only one run
    decode: Decode
    examples: Mapping[str, Mapping[str, Example]]
    samples: Mapping[Key, Sequence[Record]]


def collect_traces(runs: Sequence[Run], cells: pd.DataFrame) -> Traces:
    """Return the traces of the first prompts of each task for the cells of ``tables.read_cells``.

    The first prompts of all tasks come before the second ones, so that the size limit omits the
    same number of prompts for each task. A run without traces is skipped with a note.
    """
    opened, notes = [], []
    names = cells[list(_NAMED)].astype("object")
    names["task"] = names["task"].str.partition("/")[0]  # tasks may be split, see `Selection`
    cells_shown = set(names.where(names.notna(), None).itertuples(index=False, name=None))
    for run in runs:
        try:
            opened.append(_open(run, run.folder.name if len(runs) > 1 else None, cells_shown))
        except UsageError as error:
            notes.append(f"no traces of {run.folder.name}: {error}")
    by_prompt: dict[Key, PromptTraces] = {}
    length = 0
    for source, (task, sample) in _in_turn(opened):
        records = source.samples[task, sample]
        try:
            articles = [
                (name, trace_article(trace(record, name, source.decode), source.name))
                for record, name in zip(records, sample_names(records), strict=True)
            ]
        except (UsageError, Unreadable) as error:
            notes.append(f"no trace of {task}, {sample}: {error}")
            continue
        length += sum(len(article) for _, article in articles)
        if length > LARGEST:
            notes.append("traces of later prompts are omitted: use `specbench trace` to show them")
            break
        if (task, sample) not in by_prompt:
            example = source.examples.get(task, {}).get(sample) or Example(sample, "")
            prompt, reference = _cut("\n\n".join(example.messages)), _cut(example.reference or "")
            by_prompt[task, sample] = PromptTraces(task, sample, prompt, reference, [])
        by_prompt[task, sample].traces.extend(articles)
    return Traces(list(by_prompt.values()), list(dict.fromkeys(notes)))


def _open(run: Run, name: str | None, wanted: Collection[tuple[Any, ...]]) -> _Run:
    """Select the records of the first prompts of each task of a run."""
    examples, decode = run.examples, run_decoder(run)  # refuse before the records are read
    samples: dict[Key, list[Record]] = {}
    begun: dict[str, set[str]] = defaultdict(set)
    for record in run.records(TRACED):
        in_report = tuple(record.get(name) for name in _NAMED) in wanted
        if not in_report or record["repeat"] or record.get("status") == ERROR:
            continue
        task, sample = record["task"], record["sample_id"]
        if sample in begun[task] or len(begun[task]) < PROMPTS:
            begun[task].add(sample)
            samples.setdefault((task, sample), []).append(record)
    return _Run(name, decode, examples, samples)


def _in_turn(runs: Sequence[_Run]) -> Iterator[tuple[_Run, Key]]:
    """Yield the prompts of all runs, the first ones of all tasks before the second ones."""
    ranked: list[tuple[int, _Run, Key]] = []
    for run in runs:
        counts: Counter[str] = Counter()
        for key in run.samples:
            counts[key[0]] += 1
            ranked.append((counts[key[0]], run, key))
    yield from ((run, key) for _, run, key in sorted(ranked, key=lambda entry: entry[0]))


def _cut(text: str) -> str:
    return text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]} ..."
