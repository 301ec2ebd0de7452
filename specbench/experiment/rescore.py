"""Score a finished run again from its stored texts, without models and data."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import UsageError
from specbench.experiment.folders import as_json
from specbench.experiment.measurements import score_text
from specbench.experiment.planning import require_own_columns
from specbench.experiment.store import Summarise, lock
from specbench.files import clear_errors, copies, packing, stored, sync, sync_tree
from specbench.plugins import in_file, matching_name, short_name
from specbench.runs import records
from specbench.runs.columns import BLEU_TERMS
from specbench.runs.model import ERROR, OK, SampleRecord
from specbench.runs.run import CONFIG, ENVIRONMENT, Run, read_run
from specbench.runs.tables import schema
from specbench.tasks.example import Example
from specbench.tasks.metrics import GREEDY, METRICS, get_metric, score, try_metrics
from specbench.tasks.metrics.sandbox.launch import layers

log = logging.getLogger(__name__)

_STAGING = ".scoring"  # holds the new files until all are complete
_WRITTEN = (records.TABLE, records.SUMMARY, records.DIGEST, CONFIG, ENVIRONMENT)  # in this order
_SCORED = ("quality_metric", "quality", "scores", BLEU_TERMS, "status", "error")
_NEEDED = {*schema("samples"), "text", "scores"} - {"quality_metric", "quality"}


class FinishedRun(NamedTuple):
    """A run that can be scored; its configuration contains the metrics to measure."""

    run: Run
    samples: int  # recorded
    notes: Sequence[str]  # metrics that are skipped on a task, and why
    trusted: Collection[str]  # metrics that may be loaded: the bundled ones and the user's

    @property
    def metrics(self) -> dict[str, list[str]]:
        """The metrics of each task."""
        return {name: task.metrics or [] for name, task in self.run.tasks.items()}


class Outcome(NamedTuple):
    """The outcome of scoring a run again."""

    samples: int
    failed: int  # could not be decoded or scored
    withheld: int  # have code that was not executed, and no earlier score
    first_error: str  # empty if none failed


def open_run(folder: Path, further: Sequence[str] = ()) -> FinishedRun:
    """Read a run and its examples, and add metrics to those of each task.

    An added metric is skipped on tasks whose examples lack what it needs. A metric of the run that
    is not bundled keeps its scores unless ``further`` names it: no code is loaded for a run.
    """
    run = read_run(folder)
    metrics = [task.metrics for task in run.tasks.values()]
    if (
        run.progress is None
        or None in metrics
        or not all(name in METRICS or in_file(name) for names in metrics for name in names or ())
    ):
        raise UsageError(
            f"{folder / CONFIG} was not written by a compatible version of specbench: give the "
            "folder of another run"
        )
    notes = []
    added = dict.fromkeys(get_metric(name).name for name in further)
    trusted = {*METRICS, *added}
    for name, task in run.tasks.items():
        task.metrics = recorded = [
            metric if metric in METRICS else matching_name(metric, added) or metric
            for metric in task.metrics or ()
        ]
        notes += [
            f"{metric} of {name} keeps its scores: to score with it, give it with --metric"
            for metric in recorded
            if metric not in trusted
        ]
        has_greedy = any(METRICS[m].needs == GREEDY for m in recorded if m in METRICS)
        for metric in (metric for metric in added if metric not in recorded):
            if has_greedy and get_metric(metric).needs == GREEDY:
                task.metrics.append(metric)
            elif reason := _unfit(metric, run.examples.get(name, {}).values()):
                notes.append(f"`{metric}` is skipped on {name}: {reason}")
            else:
                task.metrics.append(metric)
        require_own_columns(task.metrics)
    samples = sum(1 for _ in records.read_lines(records.record_files(folder)[0]))
    return FinishedRun(run, samples, notes, trusted)


def score_run(
    finished: FinishedRun,
    may_execute: bool,
    report: Callable[[Mapping[str, Any]], object] = lambda record: None,
    summarise: Summarise = lambda folder: None,
) -> Outcome:
    """Score every text of a run again and replace its samples and tables.

    Files are replaced only after all new ones are on disk, so an interruption loses nothing.
    Without ``may_execute``, existing scores of metrics that execute code are kept. ``summarise`` is
    called after the tables of samples are written.
    """
    run, metrics = finished.run, finished.metrics
    with _staging(run.folder) as staging:
        latest: dict[tuple[Any, ...], SampleRecord] = {}  # the last attempt of a sample counts
        damaged: list[int] = []  # lines
        with (staging / records.RECORDS).open("wb") as file:
            for record in records.read_records(run.folder, _NEEDED, damaged):
                scored = _rescored(record, finished, may_execute)
                file.write(scored.line())
                latest[records.names_of(scored)] = scored
                report(vars(scored))
        failed = [str(record.error) for record in latest.values() if record.status != OK]
        withheld = sum(_is_withheld(r, run) for r in latest.values())
        for name in (records.TIMINGS, records.EXAMPLES, ENVIRONMENT):  # for the tables
            if (source := stored(run.folder / name)).exists():
                shutil.copy(source, staging)
        timed = records.timed_records(run.folder)
        failed += [str(record.error) for record in timed if record.status != OK]
        samples = len(latest) + len(timed)
        # As it was written, so that scoring changes nothing else.
        config = json.loads((run.folder / CONFIG).read_bytes())
        config["progress"] |= {"samples": samples, "failed": len(failed)}
        for task in config["tasks"]:
            task["metrics"] = metrics[task["name"]]
        used = [name for names in metrics.values() for name in names if name in finished.trusted]
        if sources := {**run.config.sources, **_digests(used)}:
            config["sources"] = sources
        files = {CONFIG: config}
        executed = any(get_metric(name).executes for name in used)
        if run.environment.model_fields_set and may_execute and executed:
            environment = json.loads((run.folder / ENVIRONMENT).read_bytes())
            files[ENVIRONMENT] = environment | {"sandbox": list(layers())}
        for name, values in files.items():
            (staging / name).write_text(as_json(values), encoding="utf-8")
        if records.write_samples(staging):
            summarise(staging)
        names = [path.name for path in records.record_files(run.folder)]
        if damaged:
            aside = records.set_aside(run.folder / names[0], damaged)
            log.warning(
                f"{names[0]}: {records.lines_named(damaged)} damaged and moved to {aside.name}"
            )
        for name in names:
            if name != records.RECORDS:
                with (staging / name).open("wb") as file, packing(staging / name, file) as packed:
                    packed.write((staging / records.RECORDS).read_bytes())
        if records.RECORDS not in names:
            (staging / records.RECORDS).unlink()
        sync_tree(staging)
        for name in (*names, *_WRITTEN):
            if (staging / name).exists():
                os.replace(staging / name, run.folder / name)
        for table in copies(run.folder / records.TABLE)[1:]:
            table.unlink(missing_ok=True)  # it has the old scores
        sync(run.folder)
    return Outcome(len(latest), len(failed), withheld, next(iter(failed), ""))


def _rescored(record: SampleRecord, finished: FinishedRun, may_execute: bool) -> SampleRecord:
    if record.status == ERROR:
        return record
    run, task, sample = finished.run, record.task, record.sample_id
    location = f"{run.folder} contains a sample of example {sample!r} of task {task!r}"
    try:
        names = finished.metrics[task]
        example = run.examples[task][sample].scored(record)
    except (KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"{location}, which is missing from its {records.EXAMPLES}: give the folder of another "
            "run"
        ) from error
    earlier_scores = record.scores
    if record.text is None or earlier_scores is None:
        raise UsageError(f"{location} without text or scores: give the folder of another run")
    trusted = [name for name in names if name in finished.trusted]
    fields = score_text(trusted, record, example, may_execute=may_execute)
    unscored = [n for n in names if n not in trusted or (get_metric(n).executes > may_execute)]
    earlier = {short_name(name): earlier_scores.get(short_name(name)) for name in unscored}
    scores = fields["scores"] | earlier
    fields["scores"] = {short_name(name): scores[short_name(name)] for name in names}
    fields["quality"] = next(iter(fields["scores"].values()), None)
    # Those that are in the sample's key stay, so that a resumed run decodes it again.
    if sources := {**_digests(trusted), **record.sources}:
        fields["sources"] = sources
    fields["quality_metric"] = next(iter(fields["scores"]), None)
    return record.without(*_SCORED).filled(**fields)


def _digests(metrics: Iterable[str]) -> dict[str, str]:
    """Return the digests of the sources of those metrics that are the user's own."""
    digests = {name: get_metric(name).digest for name in metrics}
    return {name: digest for name, digest in digests.items() if digest is not None}


def _is_withheld(record: SampleRecord, run: Run) -> bool:
    """Return whether a score is missing because the code was not executed."""
    return record.status == OK and any(
        name in METRICS
        and METRICS[name].executes
        and value is None
        and run.examples[record.task][record.sample_id].tests
        for name, value in (record.scores or {}).items()
    )


def _unfit(name: str, examples: Collection[Example]) -> str | None:
    """Return the reason why a metric cannot score a task's examples, or None."""
    metric = get_metric(name)
    if metric.needs == GREEDY:
        return "the run stored no greedy texts of the target: run again with --metric agreement"
    turns = (turn for example in examples for turn in example.each_turn())
    usable = [turn for turn in turns if getattr(turn, metric.needs)]
    if not usable:
        return f"its examples have no {metric.needs}"
    if metric.digest is not None:
        try_metrics([name], usable)
        return None
    try:
        for example in () if metric.executes else usable:
            score(name, "", example)
    except UsageError as error:
        return str(error)
    return None


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Lock a run and yield a temporary folder for its new files."""
    staging = folder / _STAGING
    with clear_errors(folder, "score a copy of it elsewhere"):
        held = lock(folder)
        try:
            shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
            staging.mkdir()
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            held.release()
