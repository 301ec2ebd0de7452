"""Verify a finished run: its files agree with each other, with its plan and with its models.

The run may come from anyone. Nothing that it names is executed or downloaded: rules, metrics, tasks
and models that are not bundled are used only where the user names them. What cannot be checked
is counted in the last finding, and so are times, which differ between any two runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from specbench.errors import SpecbenchError, UsageError
from specbench.example import Example
from specbench.experiment.folders import CONFIG, ENVIRONMENT, Run
from specbench.files import copies, stored
from specbench.methods.own import GROUP as METHOD_GROUP
from specbench.methods.registry import METHODS
from specbench.metrics import GROUP as METRIC_GROUP
from specbench.metrics import METRICS, get_metric
from specbench.plugins import digest_of, given_for
from specbench.proofs.findings import SKIPPED, Finding
from specbench.runs.folders import TIMINGS
from specbench.runs.frames import read_samples
from specbench.runs.records import (
    DIGEST,
    ERROR,
    EXAMPLES,
    RECORDS,
    SUMMARY,
    TABLE,
    TIMED_RECORDS,
    TRACED,
    timed_records,
)
from specbench.tasks.task import Task
from specbench.verification.counts import check_counts, check_scores
from specbench.verification.decoding import Decoder, Report, head_difference
from specbench.verification.differences import Record, finding_of
from specbench.verification.plan import check_examples, check_plan, task_of, task_plan
from specbench.verification.tables import check_tables
from specbench.words import listed

_CHECKED = {CONFIG, ENVIRONMENT, EXAMPLES, RECORDS, TABLE, SUMMARY, DIGEST, TIMINGS, TIMED_RECORDS}
_NEEDED = {*TRACED, "text", "stopped_by", "rounds", "scores", "quality", "quality_metric"}


@dataclass(frozen=True)
class Verification:
    """What to verify of a run, and what the user permits for it."""

    run: Run
    samples: int  # to decode again per cell
    seed: int = 0  # of their choice
    may_execute: bool = False  # generated code may be executed for scoring
    metrics: tuple[str, ...] = ()  # the user's own
    methods: tuple[str, ...] = ()  # likewise
    tasks: Mapping[str, Task] = field(default_factory=dict)  # likewise, by name

    @property
    def total(self) -> int:
        """The largest number of samples to decode again."""
        return self.samples * sum(len(_decoded_cells(task)) for task in self.run.tasks.values())

    @cached_property
    def source(self) -> str:
        """The file that the tables follow from: the samples, or their table if they are gone."""
        file = stored(self.run.folder / RECORDS)
        return file.name if file.is_file() else TABLE

    @cached_property
    def every(self) -> list[dict[str, Any]]:
        """The latest record of each sample; without records, the rows of their table."""
        if self.source != TABLE:
            return self.run.records(_NEEDED)
        rows = read_samples(self.run.folder)
        records: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return records

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The decoded samples."""
        return [record for record in self.every if record.get("status") != ERROR]


def verify(asked: Verification, report: Report) -> Iterator[Finding]:
    """Yield one finding per check; ``report`` is called with each sample decoded again.

    Raises:
        SpecbenchError: The run or its models cannot be read.
    """
    run, unchecked = asked.run, _Unchecked()
    described = run.tasks.values()
    if not run.progress or not all(
        {"metrics", "prompt_format"} <= task.keys() for task in described
    ):
        raise UsageError(
            f"{run.folder / CONFIG} was not written by a compatible version of specbench: "
            "give the folder of another run"
        )
    yield from check_tables(run.folder, asked.source)
    if asked.source == TABLE:
        unchecked.add(f"texts, counts and rounds, without {RECORDS}")
    else:
        yield check_counts(asked.records)
    examples = {}
    for name in run.tasks:
        examples[name], finding = _examples(asked, name, unchecked)
        if finding is not None:
            yield finding
    yield from _check_plan(asked, examples)
    if asked.source != TABLE:
        yield from _check_scores(asked, examples, unchecked)
    yield from _check_decoding(asked, examples, unchecked, report)
    checked = {file.name for name in _CHECKED for file in copies(Path(name))}
    names = sorted(entry.name for entry in run.folder.iterdir() if not entry.name.startswith("."))
    if other := [name for name in names if name not in checked]:
        unchecked.add(f"other files: {listed(other)}")
    yield unchecked.finding(run)


class _Unchecked:
    """What a verification cannot check."""

    def __init__(self) -> None:
        self.heads: set[str] = set()  # paths of those that are not here
        self._texts = ["times", "the machine and its software"]

    def add(self, text: str) -> None:
        self._texts.append(text)

    def finding(self, run: Run) -> Finding:
        """Return the last finding of a verification, which names and counts them."""
        texts = list(dict.fromkeys(self._texts))
        if number := len(self.heads):
            texts.append(f"{number} head{'s that are' if number > 1 else ' that is'} not here")
        return Finding("", run.folder.name, SKIPPED, SKIPPED, "; ".join(texts))


def _examples(
    asked: Verification, name: str, unchecked: _Unchecked
) -> tuple[dict[str, Example], Finding | None]:
    """Return the examples of a task, and the finding that compares them with the task's data."""
    run, described = asked.run, asked.run.tasks[name]
    stored = (run.folder / EXAMPLES).is_file()
    records = [record for record in asked.every if record["task"] == name]
    ids = list(dict.fromkeys(record["sample_id"] for record in records))
    examples = run.examples.get(name, {}) if stored else {each: Example(each, "") for each in ids}
    try:
        task = task_of(name, described, asked.tasks)
        if task.version != described["version"]:
            raise UsageError(f"{name} has version {task.version} here")
        if not stored:  # as many as there are
            limit, seed = min(described["examples"], len(ids) + 1), run.settings.seed
            examples = {example.id: example for example in task.examples("test", limit, seed)}
        return examples, check_examples(name, described, run.settings.seed, examples, task)
    except SpecbenchError as error:
        unchecked.add(f"examples of {name} ({error})")
        return examples, None


def _check_plan(
    asked: Verification, examples: Mapping[str, Mapping[str, Example]]
) -> Iterator[Finding]:
    timed = timed_records(asked.run.folder)
    lost = any("timing" in c for t in asked.run.tasks.values() for c in t["cells"]) and not timed
    whole = asked.source != TABLE and not lost
    return check_plan(asked.run, [*asked.every, *timed], examples, whole)


def _trusted(asked: Verification, recorded: str, given: tuple[str, ...], group: str) -> str:
    """Return the user's function for one that a run names; its file is read, but not executed.

    Raises:
        UsageError: The user names none, or its content differs from the run's.
    """
    name = given_for(recorded, given)
    option = "--metric" if group == METRIC_GROUP else "--method"
    if name is None:
        raise UsageError(f"{recorded} is not bundled: name it with {option}")
    if digest_of(name, group) != asked.run.config.get("sources", {}).get(recorded):
        raise UsageError(f"{name} was edited since the run: restore its file")
    return name


def _metrics(asked: Verification, task: str, unchecked: _Unchecked) -> list[str]:
    """Return the metrics of a task that can score here: bundled ones, and the user's."""
    names = []
    for name in asked.run.tasks[task]["metrics"]:
        try:
            own = name not in METRICS
            names.append(_trusted(asked, name, asked.metrics, METRIC_GROUP) if own else name)
        except SpecbenchError as error:
            unchecked.add(f"scores by {name} ({error})")
    return names


def _check_scores(
    asked: Verification, examples: Mapping[str, Mapping[str, Example]], unchecked: _Unchecked
) -> Iterator[Finding]:
    for name in asked.run.tasks:
        metrics = _metrics(asked, name, unchecked)
        plain = [metric for metric in metrics if not get_metric(metric).executes]
        for metric in metrics:
            if metric not in plain:
                unchecked.add(f"{metric} of the samples of {name} that are not decoded again")
        records = [record for record in asked.records if record["task"] == name]
        if any(example.prompt for example in examples[name].values()):
            recorded = asked.run.tasks[name]["metrics"]
            yield check_scores(name, recorded, plain, records, examples[name])


def _check_decoding(
    asked: Verification,
    examples: Mapping[str, Mapping[str, Example]],
    unchecked: _Unchecked,
    report: Report,
) -> Iterator[Finding]:
    """Compare heads and rules with those that are here, and decode samples again."""
    run, methods = asked.run, {}
    for name in {cell["method"] for task in run.tasks.values() for cell in task["cells"]}:
        if name not in METHODS:
            try:
                methods[name] = _trusted(asked, name, asked.methods, METHOD_GROUP)
            except SpecbenchError as error:
                unchecked.add(f"the rule {name} ({error})")
    decoder = Decoder(run, asked.samples, asked.seed, methods, asked.may_execute)
    tasks, heads = [], 0
    faults: list[str] = []
    for name, described in run.tasks.items():
        cells = []
        for cell in _decoded_cells(described):
            if cell["method"] not in {*METHODS, *methods}:
                continue
            head = cell.get("head")
            try:
                cells.append(decoder.cell(cell, name))
            except SpecbenchError as error:
                if isinstance(head, Mapping):
                    unchecked.heads.add(str(head.get("path")))
                else:
                    unchecked.add(f"{cell['method']} ({error})")
                continue
            heads += isinstance(head, Mapping)
            faults += filter(None, [head_difference(cell, cells[-1])])
        if cells and any(example.prompt for example in examples[name].values()):
            metrics = _metrics(asked, name, _Unchecked())
            tasks.append(task_plan(run, name, examples[name], metrics, cells))
    if heads:
        yield finding_of("heads are those of the run", f"{heads} cells", faults)
    if not asked.samples:
        unchecked.add("whether the models decode these texts, without --samples")
    elif tasks:
        decoded = count(1)

        def counted(made: Record) -> None:
            next(decoded)
            report(made)

        yield from decoder.decode(tasks, asked.records, counted)
        if left := len(asked.records) + 1 - next(decoded):
            chosen = f" (--seed {asked.seed} chose the others)" if asked.samples else ""
            unchecked.add(f"{left:,} samples that were not decoded again{chosen}")


def _decoded_cells(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a task in ``config.json`` whose texts are recorded."""
    return [cell for cell in task["cells"] if "timing" not in cell]
