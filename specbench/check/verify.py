"""Verify a finished run: its tables follow from its samples, and samples can be made again.

Nothing is said about times, which differ between any two runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch

from specbench.analysis.folders import TIMINGS, lacks
from specbench.analysis.frames import SUMMARY as SUMMARY_COLUMNS
from specbench.analysis.frames import read_samples
from specbench.analysis.labels import method_label
from specbench.check.findings import FAILED, OK, REPORT, SKIPPED, Finding
from specbench.decoding.records import Generation, RoundRecord
from specbench.engine.loading import LoadedPair
from specbench.errors import SpecbenchError, UsageError, require
from specbench.example import Example
from specbench.experiment.environment import describe_environment
from specbench.experiment.folders import CONFIG, ENVIRONMENT, Run
from specbench.experiment.measurements import measurements, score_text
from specbench.experiment.plan import Cell, Plan, Step, TaskPlan, own_sources
from specbench.experiment.records import (
    ERROR,
    EXAMPLES,
    NAMES,
    PACKED,
    RECORDS,
    SUMMARY,
    TABLE,
    TIMED_RECORDS,
    TRACED,
    names_of,
    write_summary,
    write_tables,
    write_timings,
)
from specbench.experiment.runner import Loader, SampleRunner
from specbench.files import stored
from specbench.methods.registry import get_method
from specbench.metrics import get_metric
from specbench.pairs.registry import ROLES
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Task, load_task

ROUNDING = 1e-9  # relative difference of equal numbers; sums may be added in another order
PROBABILITY = 1e-3  # absolute; probabilities are stored rounded, and depend on the machine
#: The columns that decoding again must reproduce, causes before consequences.
DECODED = (
    *("prompt_tokens", "token_ids", "text", "stopped_by", "output_tokens", "rounds", "proposed"),
    *("accepted", "judged", "expected_acceptance", "mean_weight", "per_round", "quality", "scores"),
)
AGAIN = "decoded again"
_NEEDED = {*TRACED, "text", "stopped_by", "rounds", "scores"}
_CELL = [name for name in SUMMARY_COLUMNS if name not in {"value", "ci_low", "ci_high", "n"}]

Record = Mapping[str, Any]
Report = Callable[[Record], object]


@dataclass(frozen=True)
class Verification:
    """What to verify of a run."""

    run: Run
    samples: int  # to decode again per cell
    seed: int = 0  # of their choice
    may_execute: bool = False  # generated code may be executed for scoring

    @property
    def total(self) -> int:
        """The largest number of samples to decode again."""
        return self.samples * sum(len(_decoded_cells(task)) for task in self.run.tasks.values())

    @cached_property
    def source(self) -> str:
        """The file that the tables follow from: the samples, or their table if they are gone."""
        known = (name for name in (RECORDS, PACKED) if (self.run.folder / name).is_file())
        return next(known, TABLE)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The decoded samples; without their records, the rows of their table."""
        if self.source != TABLE:
            return [record for record in self.run.records(_NEEDED) if record["status"] != ERROR]
        rows = read_samples(self.run.folder)
        found: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return found

    def examples(self, task: str) -> Mapping[str, Example]:
        """Return the examples of a task by id: the run's, or read again from the task's data.

        Raises:
            SpecbenchError: The run does not store them, and their data is not available.
        """
        if (self.run.folder / EXAMPLES).is_file():
            return self.run.examples.get(task, {})
        limit, seed = self.run.tasks[task]["examples"], self.run.settings.seed
        return {example.id: example for example in load_task(task).examples("test", limit, seed)}


def verify(what: Verification, report: Report) -> Iterator[Finding]:
    """Yield one finding per check; ``report`` is called with each sample decoded again.

    Raises:
        SpecbenchError: The run or its models cannot be read.
    """
    if not all({"metrics", "prompt_format"} <= task.keys() for task in what.run.tasks.values()):
        raise UsageError(
            f"{what.run.folder / CONFIG} was not written by a compatible version of specbench: "
            "give the folder of another run"
        )
    yield from _check_tables(what.run.folder, what.source)
    if what.source == TABLE:
        says = f"the run has no {RECORDS}, so texts and rounds are unknown"
        yield Finding("", what.run.folder.name, "counts follow from rounds", SKIPPED, says)
    else:
        yield _check_counts(what.records)
        yield from _check_scores(what)
    if what.samples:
        yield from _check_decoding(what, report)


def _check_tables(folder: Path, source: str) -> Iterator[Finding]:
    """Write the tables again into another folder, and compare them."""
    with TemporaryDirectory() as temporary:
        again = Path(temporary)
        timings = TIMED_RECORDS if (folder / TIMED_RECORDS).is_file() else TIMINGS
        for name in (source, timings):
            if (file := stored(folder / name)).is_file():
                (again / file.name).symlink_to(file.resolve())
        if source == TABLE:
            write_timings(again)
            write_summary(again)
        else:
            write_tables(again)
            yield _compare_tables(folder / TABLE, again / TABLE, NAMES, source)
        if (folder / TIMED_RECORDS).is_file() and (again / TIMINGS).is_file():
            keys = (*NAMES, "timing", "session")
            yield _compare_tables(folder / TIMINGS, again / TIMINGS, keys, TIMED_RECORDS)
        yield _compare_tables(folder / SUMMARY, again / SUMMARY, _CELL, source)


def _compare_tables(path: Path, again: Path, keys: Sequence[str], source: str) -> Finding:
    """Compare the rows of a table; a metric that all of it lacks is no difference."""
    path = stored(path)
    if not path.is_file():
        raise UsageError(lacks(path.parent, path.name))
    there, here = _rows(path, keys), _rows(again, keys)
    metrics = {row.get("metric") for row in there.values()}

    def compare() -> Iterator[tuple[Record, str]]:
        for key, row in there.items():
            yield row, difference(row, here[key]) if key in here else f"is not in {source}"
        for key, row in here.items():
            if key not in there and row.get("metric") in metrics:
                yield row, f"is missing from {path.name}"

    return _finding(f"{path.name} follows from {source}", f"{len(there):,} rows", compare())


def _rows(path: Path, keys: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of a table, with numbers as numbers.

    A row's name has the values of its ``keys`` and a number, by which copies of a row differ.
    """
    rows = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    parsed = [{str(name): _parsed(text) for name, text in row.items()} for row in rows]
    seen: Counter[tuple[Any, ...]] = Counter()
    found = {}
    for row in parsed:
        name = tuple(row.get(key) for key in keys)
        seen[name] += 1
        found[(*name, seen[name])] = row
    return found


def _parsed(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _check_counts(records: Sequence[Record]) -> Finding:
    """Check that the counts and rates of samples follow from their rounds and tokens."""

    def made(record: Record) -> dict[str, Any]:
        rounds = record["per_round"]
        names = [each.name for each in fields(RoundRecord) if each.name in rounds]
        values = zip(*(rounds[name] for name in names), strict=False)
        known: dict[str, Any] = {each.name: record.get(each.name) for each in fields(Generation)}
        known["output_tokens"] = len(record["token_ids"]) + (record["stopped_by"] == "eos")
        known["rounds"] = [RoundRecord(**dict(zip(names, row, strict=True))) for row in values]
        return measurements(Generation(**known), drafts=record["draft_length"] > 0)

    found = ((record, difference(record, made(record), PROBABILITY)) for record in records)
    return _finding("counts follow from rounds", f"{len(records):,} samples", found)


def _check_scores(what: Verification) -> Iterator[Finding]:
    """Score all stored texts again by the metrics that execute no code."""
    for task, about in what.run.tasks.items():
        metrics = about["metrics"]
        try:
            _require_same_source(what.run, {name: get_metric(name).digest for name in metrics})
            if all(get_metric(name).executes for name in metrics):
                continue  # the samples that are decoded again are scored too
            examples = what.examples(task)
        except SpecbenchError as error:
            yield Finding("", task, "texts scored again", SKIPPED, str(error))
            continue
        records = [record for record in what.records if record["task"] == task]
        found = ((record, _score_difference(metrics, record, examples)) for record in records)
        yield _finding("texts scored again", f"{task}, {len(records):,} samples", found)


def _score_difference(
    metrics: Sequence[str], record: Record, examples: Mapping[str, Example]
) -> str:
    if record["sample_id"] not in examples:
        return "the example is missing"
    example = examples[record["sample_id"]].scored(record.get("turn"), record.get("greedy"))
    return difference(record, score_text(metrics, record["text"], example, may_execute=False))


def _check_decoding(what: Verification, report: Report) -> Iterator[Finding]:
    """Decode some samples of each cell again with the models of the run."""
    run, tasks = what.run, []
    for name, about in run.tasks.items():
        cells = []
        try:
            examples = what.examples(name)
        except SpecbenchError as error:
            yield Finding("", name, AGAIN, SKIPPED, str(error))
            continue
        for described in _decoded_cells(about):
            try:
                cell = Cell.read(described, run.pair, name)
                _require_same_source(run, {cell.method: get_method(cell.method).digest})
                cells.append(cell)
            except SpecbenchError as error:
                yield Finding("", f"{name}, {described['method']}", AGAIN, SKIPPED, str(error))
        if cells:
            tasks.append(_task_plan(run, name, examples, cells))
    if not tasks:
        return
    sources = own_sources(tasks)
    plan = Plan(run.pair, run.loading, run.settings, tuple(tasks), what.may_execute, (), sources)
    pair = Loader().load(plan)
    runner = SampleRunner(plan, pair)
    yield _check_models(run, runner.models)
    if what.source != TABLE:
        yield _check_texts(what.records, pair)
    stored = {names_of(record): record for record in what.records}
    for number, task in enumerate(plan.tasks):
        found = []
        for steps in _choose(plan, number, stored, what):
            for _, made in runner.run(steps):
                report(made)
                record = stored[names_of(made)]
                failed = made["error"] if made["status"] == ERROR else ""
                found.append((record, failed or _divergence(record, made)))
        subject = f"{task.task.name}, {len(found):,} samples of {len(task.cells)} cells"
        finding = _finding(AGAIN, subject, found)
        # In bfloat16 rounding depends on the batch and may change a token.
        coarse = finding.verdict == FAILED and pair.target.dtype != torch.float32
        yield replace(finding, verdict=REPORT) if coarse else finding


def _decoded_cells(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a task in ``config.json`` whose texts are recorded."""
    return [cell for cell in task["cells"] if "timing" not in cell]


def _require_same_source(run: Run, digests: Mapping[str, str | None]) -> None:
    """Refuse rules and metrics of the user's own that were edited since the run."""
    known = run.config.get("sources", {})
    for name, digest in digests.items():
        require(known.get(name) == digest, f"{name} was edited since the run: restore its file")


def _task_plan(
    run: Run, name: str, examples: Mapping[str, Example], cells: Sequence[Cell]
) -> TaskPlan:
    """Return the plan of a task as the run executed it."""
    about, prompts = run.tasks[name], tuple(examples.values())
    task = Task(
        name=name,
        version=about["version"],
        description="",
        metrics=tuple(about["metrics"]),
        stop=tuple(about["stop"]),
        max_new_tokens=about["max_new_tokens"],
        source=PromptList(prompts),
        path=run.folder,
        prompt_format=about["prompt_format"],
    )
    return TaskPlan(task, prompts, tuple(cells), task.max_new_tokens)


def _choose(
    plan: Plan, number: int, stored: Mapping[tuple[Any, ...], Record], what: Verification
) -> Iterator[list[Step]]:
    """Yield the steps to decode again, of one cell of a task at a time."""
    task = plan.tasks[number]
    for cell in range(len(task.cells)):
        places = [
            (number, repeat, example, cell)
            for repeat in range(plan.settings.repeats)
            for example in range(len(task.examples))
        ]
        every = map(plan.step, places)
        names = (
            (step, [names_of(plan.identify(turn, "")) for turn in step.turns]) for step in every
        )
        steps = [step for step, turns in names if stored.keys() >= {*turns}]
        yield Random(f"{what.seed}/{number}/{cell}").sample(steps, min(what.samples, len(steps)))


def _divergence(record: Record, made: Record) -> str:
    """Return the first columns in which a sample differs from the one made again."""
    columns = ({name: made[name]} for name in DECODED)
    found = [text for column in columns if (text := difference(record, column, PROBABILITY))]
    return "; ".join(found[:2])


def _check_texts(records: Sequence[Record], pair: LoadedPair) -> Finding:
    """Check that all stored texts follow from their tokens."""

    def compare(record: Record) -> str:
        text = str(pair.tokenizer.decode(record["token_ids"], skip_special_tokens=True))
        cut = len(record["text"]) if record["stopped_by"] == "stop" else None
        return difference({"text": record["text"]}, {"text": text[:cut]})

    found = ((record, compare(record)) for record in records)
    return _finding("texts follow from tokens", f"{len(records):,} samples", found)


def _check_models(run: Run, models: Mapping[str, Any]) -> Finding:
    """Check that the models have the weights of the run, and tell what else differs here."""
    known = run.environment.get("models", {})
    if not known.get("target"):
        says = f"the run has no {ENVIRONMENT} with the fingerprints"
        return Finding("", run.pair.name, "same weights", SKIPPED, says)
    here = {**models, **describe_environment()["packages"]}
    there = {**known, **run.environment.get("packages", {})}
    others = [
        f"{name} {here[name]}, there {there[name]}"
        for name in ("device", "dtype", "torch", "transformers")
        if there.get(name) not in (None, here[name])
    ]
    wrong = difference(known, {role: models.get(role) for role in ROLES})
    says = "; ".join(filter(None, [wrong, *others]))
    return Finding("", run.pair.name, "same weights", FAILED if wrong else OK, says)


def difference(there: Any, here: Any, within: float = 0.0) -> str:
    """Return the first place where two plain values differ, with both; empty if they are equal.

    Objects are compared by their common keys, without those that are None on either side. Numbers
    are equal up to rounding, or up to an absolute difference ``within``.
    """
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in (n for n in here if there.get(n) is not None and here[n] is not None):
            if found := difference(there[name], here[name], within):
                return f"{name}{found}" if found[0] in " [" else f"{name}.{found}"
        return ""
    if isinstance(there, list) and isinstance(here, list):
        for at, (one, other) in enumerate(zip(there, here, strict=False)):
            if found := difference(one, other, within):
                return f"[{at}]{found}"
        return "" if len(there) == len(here) else f" has length {len(there)}, not {len(here)}"
    if isinstance(there, int | float) and isinstance(here, int | float):
        same = math.isclose(there, here, rel_tol=ROUNDING, abs_tol=within)
        return "" if same else f" is {there:.12g}, not {here:.12g}"
    if isinstance(there, str) and isinstance(here, str) and there != here:
        first = next(at for at in count() if there[at : at + 1] != here[at : at + 1])
        at = max(first - 10, 0)
        place = f"[{at}:]" if at else ""
        return f"{place} is {there[at : at + 30]!r}, not {here[at : at + 30]!r}"
    return "" if there == here else f" is {there!r}, not {here!r}"


def _finding(name: str, subject: str, found: Iterable[tuple[Record, str]]) -> Finding:
    """Return the finding of a check of many samples, which names the first one that differs."""
    differing = [f"{_named(record)}: {text}" for record, text in found if text]
    if not differing:
        return Finding("", subject, name, OK, "")
    more = f" (and {len(differing) - 1:,} more)" if len(differing) > 1 else ""
    return Finding("", subject, name, FAILED, differing[0] + more)


def _named(row: Record) -> str:
    """Return the name of a sample, or of a row of the summary."""
    known = {name: None if value == "" else value for name, value in row.items()}
    length = f"N = {known['draft_length']:g}" if known["draft_length"] else ""
    repeat = f"repeat {known['repeat']:g}" if known.get("repeat") else ""
    last = known.get("sample_id") or known.get("metric")
    return ", ".join(filter(None, [known["task"], method_label(known), length, last, repeat]))
