"""The traces of a report.

All values are escaped. A report has the first prompts of each task by every method, up to a limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from specbench.analysis.tables.html import environment
from specbench.analysis.trace import Decode, run_decoder, sample_names, trace, visible
from specbench.errors import UsageError
from specbench.runs.model import ERROR, SampleRecord
from specbench.runs.run import Run
from specbench.tasks.example import Example

PROMPTS = 5  # per task
LARGEST = 1_300_000  # characters of all traces together
_NAMED = ("task", "method", "draft_length", "drafter")
_EXAMPLE = 6000  # characters of a prompt or a reference
Key = tuple[str, str]  # a task and a prompt
environment().filters["visible"] = visible  # here, since traces alone need a tokenizer


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


class TracedRun(NamedTuple):
    """The records of the first prompts of each task of a run."""

    name: str | None  # None if there is only one run
    decode: Decode
    examples: Mapping[str, Mapping[str, Example]]
    samples: Mapping[Key, Sequence[SampleRecord]]


def collect_traces(runs: Sequence[TracedRun], notes: Sequence[str] = ()) -> Traces:
    """Return the traces of the first prompts of each task.

    The first prompts of all tasks come before the second ones, so that the size limit omits the
    same number of prompts for each task.
    """
    notes = [*notes]
    macros: Any = environment().get_template("macros.html").module
    by_prompt: dict[Key, PromptTraces] = {}
    length = 0
    ranked: list[tuple[int, TracedRun, Key]] = []
    for run in runs:
        counts: Counter[str] = Counter()
        for key in run.samples:
            counts[key[0]] += 1
            ranked.append((counts[key[0]], run, key))
    for _, source, (task, sample) in sorted(ranked, key=lambda entry: entry[0]):
        records = source.samples[task, sample]
        try:
            articles = [
                (name, Markup(macros.article(trace(record, name, source.decode), source.name)))
                for record, name in zip(records, sample_names(records), strict=True)
            ]
        except UsageError as error:
            notes.append(f"no trace of {task}, {sample}: {error}")
            continue
        length += sum(len(article) for _, article in articles)
        if length > LARGEST:
            notes.append("traces of later prompts are omitted: use `specbench trace` to show them")
            break
        if (task, sample) not in by_prompt:
            example = source.examples.get(task, {}).get(sample) or Example(sample, "")
            texts = "\n\n".join(example.texts), example.reference or ""
            prompt, reference = (t if len(t) <= _EXAMPLE else f"{t[:_EXAMPLE]} ..." for t in texts)
            by_prompt[task, sample] = PromptTraces(task, sample, prompt, reference, [])
        by_prompt[task, sample].traces.extend(articles)
    return Traces(list(by_prompt.values()), list(dict.fromkeys(notes)))


def reported(records: Iterable[SampleRecord], cells: pd.DataFrame) -> Iterator[SampleRecord]:
    """Yield the first text of each prompt of some cells."""
    names = cells[list(_NAMED)].astype("object")
    names["task"] = names["task"].str.partition("/")[0]  # tasks may be split, see `Selection`
    wanted = set(names.where(names.notna(), None).itertuples(index=False, name=None))
    for record in records:
        in_report = tuple(getattr(record, name) for name in _NAMED) in wanted
        if in_report and not record.repeat and record.status != ERROR:
            yield record


def open_run(run: Run, records: Iterable[SampleRecord], name: str | None = None) -> TracedRun:
    """Select the records of the first prompts of each task."""
    examples, decode = run.examples, run_decoder(run)
    samples: dict[Key, list[SampleRecord]] = {}
    begun: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.method in run.servers:  # which does not tell rejected tokens
            continue
        task, sample = record.task, record.sample_id
        if sample in begun[task] or len(begun[task]) < PROMPTS:
            begun[task].add(sample)
            samples.setdefault((task, sample), []).append(record)
    return TracedRun(name, decode, examples, samples)
