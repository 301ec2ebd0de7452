"""Scoring a finished run anew from its stored texts, without its models and data."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specbench.analysis.frames import BLEU_TERMS, SAMPLES
from specbench.errors import UsageError
from specbench.example import Example
from specbench.experiment.examples import EXAMPLES, read_examples
from specbench.experiment.folders import CONFIG, ENVIRONMENT, as_json
from specbench.experiment.lines import Foreign, parse_line, read_lines
from specbench.experiment.records import ERROR, OK, PACKED, RECORDS, names_of, record_files
from specbench.experiment.scoring import score_text
from specbench.experiment.store import lock
from specbench.experiment.tables import DIGEST, SUMMARY, TABLE, write_tables
from specbench.files import clear_errors
from specbench.metrics import METRICS, get_metric, score
from specbench.metrics.sandbox.launch import layers

_STAGING = ".scoring"  # the new files lie here until all of them are whole
_ADVICE = "score a copy of it elsewhere"
_SCORED = ("quality_metric", "quality", "scores", BLEU_TERMS, "status", "error")
_NEEDED = {*SAMPLES, "text", "scores"} - {"quality_metric", "quality"}

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder with all that scoring needs.

    Attributes:
        folder: The folder.
        metrics: Metrics by task.
        samples: Samples recorded.
        examples: Examples by task and id.
        config: What ``config.json`` is to be once the run is scored.
        notes: What the user should know: further metrics left out on a task, and why.
    """

    folder: Path
    metrics: Mapping[str, Sequence[str]]
    samples: int
    examples: Mapping[str, Mapping[str, Example]] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    notes: Sequence[str]

    @property
    def executes(self) -> bool:
        """True where some of its metrics run programs."""
        return any(METRICS[name].executes for names in self.metrics.values() for name in names)


class Outcome(NamedTuple):
    """What came of scoring a run anew."""

    samples: int
    failed: int  # could not be decoded, or not be scored
    withheld: int  # have programs that were not run, and no score from an earlier time
    first_error: str  # of those that failed; empty where none did


def open_run(folder: Path, further: Sequence[str] = ()) -> FinishedRun:
    """Read what a run measured and on which examples.

    Args:
        folder: The run's folder.
        further: Metrics to measure beside those of each task, where its examples allow.

    Raises:
        UsageError: The folder holds no run, or one without its examples, or a metric is unknown.
    """
    config = _read_config(folder / CONFIG)
    beside = dict.fromkeys(get_metric(name).name for name in further)
    known = read_examples(folder)
    notes = []
    for task in config["tasks"]:
        added = []
        for metric in (name for name in beside if name not in task["metrics"]):
            if reason := _unfit(metric, known.get(task["name"], {}).values()):
                notes.append(f"`{metric}` is left out on {task['name']}: {reason}")
            else:
                added.append(metric)
        task["metrics"] = [*task["metrics"], *added]
    samples = sum(1 for _ in read_lines(record_files(folder)[0]))
    metrics = {task["name"]: task["metrics"] for task in config["tasks"]}
    examples = {task: known.get(task, {}) for task in metrics}
    return FinishedRun(folder, metrics, samples, examples, config, notes)


def score_run(run: FinishedRun, may_execute: bool, report: Report) -> Outcome:
    """Score every text of a run anew and replace its samples and tables.

    Nothing is replaced before all of it lies on disk, so an interruption loses nothing. Scores that
    took running programs are kept where that is not allowed now.

    Args:
        run: What to score.
        may_execute: Whether metrics that run generated code may do so.
        report: Called with each record.

    Raises:
        UsageError: A line of the samples is no sample of this run, or its run is still going on.
        SpecbenchError: The folder cannot be written.
    """
    with _locked(run.folder), _staging(run.folder) as staging:
        sources = record_files(run.folder)
        outcome = _score_into(staging / RECORDS, sources[0], run, may_execute, report)
        write_tables(staging)
        progress = {"samples": outcome.samples, "failed": outcome.failed}
        config = {**run.config, "progress": {**run.config["progress"], **progress}}
        (staging / CONFIG).write_text(as_json(config), encoding="utf-8")
        if (packed := run.folder / PACKED) in sources:
            content = gzip.compress((staging / RECORDS).read_bytes(), mtime=0)
            (staging / packed.name).write_bytes(content)
        if may_execute and run.executes:
            _note_sandbox(run.folder / ENVIRONMENT, staging)
        written = (*(path.name for path in sources), TABLE, SUMMARY, DIGEST, CONFIG, ENVIRONMENT)
        for name in written:
            if (staging / name).exists():
                os.replace(staging / name, run.folder / name)
    return outcome


def _note_sandbox(environment: Path, staging: Path) -> None:
    """Write anew where a run took place, with what programs are run in here."""
    with suppress(OSError, ValueError):
        known = json.loads(environment.read_bytes())
        text = as_json({**known, "sandbox": list(layers())})
        (staging / environment.name).write_text(text, encoding="utf-8")


def _unfit(name: str, examples: Collection[Example]) -> str | None:
    """Return why a metric cannot score the examples of a task, whatever the texts; else None."""
    metric = get_metric(name)
    usable = [example for example in examples if getattr(example, metric.needs)]
    if not usable:
        return f"its examples have no {metric.needs}"
    try:
        for example in () if metric.executes else usable:
            score(name, "", example)
    except UsageError as error:
        return str(error)
    return None


def _score_into(
    path: Path, source: Path, run: FinishedRun, may_execute: bool, report: Report
) -> Outcome:
    """Write the records of ``source`` with new scores to ``path``."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    with path.open("wb") as file:
        for number, line in enumerate(read_lines(source), start=1):
            try:
                record = _parse(line)
                scored = _rescored(record, run, may_execute)
            except Foreign as error:
                raise UsageError(f"{source}, line {number}, is no sample of it: {error}") from error
            file.write(json.dumps(scored, ensure_ascii=False).encode() + b"\n")
            found[names_of(scored)] = scored  # of those tried again the last counts
            report(scored)
    failed = [str(record.get("error")) for record in found.values() if record["status"] != OK]
    withheld = sum(_withheld(record, run) for record in found.values())
    return Outcome(len(found), len(failed), withheld, next(iter(failed), ""))


def _rescored(record: Mapping[str, Any], run: FinishedRun, may_execute: bool) -> dict[str, Any]:
    if record["status"] == ERROR:
        return dict(record)
    example = _example(record, run)  # of a task of this run, then
    metrics = run.metrics[record["task"]]
    fields = score_text(metrics, record["text"], example, may_execute=may_execute)
    if not may_execute:
        fields["scores"] |= {n: record["scores"].get(n) for n in metrics if METRICS[n].executes}
        fields["quality"] = fields["scores"][metrics[0]] if metrics else None
    kept = {name: value for name, value in record.items() if name not in _SCORED}
    return {**kept, "quality_metric": metrics[0] if metrics else None, **fields}


def _withheld(record: Mapping[str, Any], run: FinishedRun) -> bool:
    """Whether a score is blank because the program was not run."""
    return record["status"] == OK and any(
        METRICS[name].executes and value is None and _example(record, run).tests
        for name, value in record["scores"].items()
    )


def _parse(line: bytes) -> dict[str, Any]:
    record = parse_line(line)
    if not isinstance(record.get("status"), str):
        raise Foreign("it has no status")
    if record["status"] != ERROR:
        if missing := sorted(_NEEDED - record.keys()):
            raise Foreign(f"it has no {', '.join(missing)}")
        if not isinstance(record["text"], str) or not isinstance(record["scores"], dict):
            raise Foreign("its text or its scores are of the wrong type")
    return record


def _example(record: Mapping[str, Any], run: FinishedRun) -> Example:
    task, name = record["task"], record["sample_id"]
    try:
        return run.examples[task][name]
    except (KeyError, TypeError) as error:
        raise Foreign(f"example {name!r} of task {task!r} is not in its {EXAMPLES}") from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
        usable = isinstance(config["progress"], dict) and all(
            isinstance(task["name"], str) and METRICS.keys() >= set(task["metrics"])
            for task in config["tasks"]
        )
    except OSError as error:
        raise UsageError(
            f"{path.parent} is no run, {path.name} cannot be read ({error.strerror}): "
            "give the folder of a run"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError):
        usable = False
    if not usable:
        raise UsageError(
            f"{path} is no configuration that this version of specbench writes: "
            "give the folder of another run"
        )
    return config


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with clear_errors(folder, _ADVICE):
        held = lock(folder)
    try:
        yield
    finally:
        held.release()


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Give a folder for new files that is gone in the end; say in a sentence what the disk says."""
    staging = folder / _STAGING
    try:
        with clear_errors(folder, _ADVICE):
            shutil.rmtree(staging, ignore_errors=True)  # left by a scoring that was killed
            staging.mkdir()
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
