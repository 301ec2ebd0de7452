"""The samples of a run are those of its plan, and its examples and heads those that it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from specbench.config import AUTO
from specbench.engine.pairs import PairSpec
from specbench.errors import UsageError, listed
from specbench.experiment.cells import Cell
from specbench.experiment.plan import Plan, Step, TaskPlan, most_in_flight
from specbench.runs.configuration import Settings, TaskConfig
from specbench.runs.model import OK as DECODED
from specbench.runs.model import SampleRecord
from specbench.runs.records import names_of
from specbench.runs.run import COMPLETE, Run
from specbench.serving.arm import Arm
from specbench.tasks.example import Example
from specbench.tasks.prompts import PromptList
from specbench.tasks.task import Task
from specbench.validation import findings

LARGEST = 200_000  # planned samples of a run that has hardly any


def check_plan(
    run: Run,
    records: Sequence[SampleRecord],
    examples: Mapping[str, Mapping[str, Example]],
    whole: bool,
) -> Iterator[findings.Finding]:
    """Compare all records with the plan: each cell has each example once per repeat and turn.

    ``examples`` are by task and id, with the ids of the records where the run does not store them;
    ``whole`` says whether timed and failed samples are among the records.
    """
    tasks = [
        task_plan(run, name, examples[name], task.metrics or (), map(Cell.recorded, task.cells))
        for name, task in run.tasks.items()
    ]
    pair = PairSpec(str(run.config.pair.name), "", None)
    servers: dict[str, Any] = {"arms": arms_of(run), "in_flight": most_in_flight(tasks)}
    plan = Plan(pair, run.loading, run.settings, tuple(tasks), **servers)
    if len(plan) > LARGEST + 100 * len(records):  # a run may claim any number
        text = f"{len(plan):,} samples are planned, far more than there are"
        yield findings.finding_of("samples are those of the plan", run.folder.name, [text])
        return
    settings = run.settings
    here = any(c.method not in run.servers for task in run.tasks.values() for c in task.cells)
    engine = settings.engine if here and settings.engine != AUTO else run.environment.engine
    steps = [step for step in plan.steps() if whole or not step.cell.timing]
    planned = [(step, plan.identify(step, str(engine))) for step in steps]
    expected = {names_of(s): _columns(run, engine, step, s) for step, s in planned}
    recorded = {names_of(record): record for record in records}
    faults = [
        f"{name} has {len(examples[name])} examples, not {task.examples}"
        for name, task in run.tasks.items()
        if len(examples[name]) != task.examples
    ]
    yield _check_samples(run, expected, records, whole, faults)
    pairs = [(recorded[name], sample) for name, sample in expected.items() if name in recorded]
    compared = [(vars(r), findings.difference(vars(r), sample)) for r, sample in pairs]
    wrong = [f"{findings.named(row)}: {text}" for row, text in compared if text]
    wrong += _contradictions(run, records)
    subject = f"{len(compared):,} samples"
    yield findings.finding_of("settings are those of the plan", subject, wrong)


def _check_samples(
    run: Run,
    expected: Mapping[tuple[Any, ...], findings.Record],
    records: Sequence[SampleRecord],
    whole: bool,
    faults: list[str],
) -> findings.Finding:
    """Compare the samples that were planned with those that are there, by their names."""
    recorded = {names_of(record): record for record in records}
    planned = run.config.samples_planned
    if whole and len(expected) != planned:
        faults.append(f"samples_planned is {planned}, not {len(expected)}")
    unplanned = recorded.keys() - expected.keys()
    faults += [f"{findings.named(vars(recorded[name]))}: is not planned" for name in unplanned]
    missing = [sample for name, sample in expected.items() if name not in recorded]
    failed = [record for record in recorded.values() if record.status != DECODED]
    progress, notes = run.progress, []
    if progress is not None and progress.state == COMPLETE:
        faults += [f"{findings.named(sample)}: is missing" for sample in missing]
        counts = {"samples": len(recorded), "failed": len(failed)}
        if whole and (text := findings.difference(vars(progress), counts)):
            faults.append(f"progress.{text}")
    elif missing:
        notes.append(f"incomplete: {len(missing):,} samples are missing")
    elif progress:
        notes.append(f"its state is {progress.state}")
    if failed:
        notes.append(f"{len(failed):,} samples failed")
    verdict = findings.INCOMPLETE if notes else findings.REPORT
    unscored = sum(r.quality_metric is not None and r.quality is None for r in records)
    if unscored:
        notes.append(f"{unscored:,} samples have no quality")
    subject = f"{len(recorded):,} of {len(expected):,} samples"
    result = findings.finding_of("samples are those of the plan", subject, faults)
    if notes and not faults:
        result = replace(result, verdict=verdict, sentence="; ".join(notes))
    return result


def arms_of(run: Run) -> tuple[Arm, ...]:
    """Return the servers of a run, without their addresses."""
    servers = run.servers.values()
    return tuple(Arm(s.name, "", s.model, s.prompts) for s in servers)


def task_plan(
    run: Run,
    name: str,
    examples: Mapping[str, Example],
    metrics: Iterable[str],
    cells: Iterable[Cell],
) -> TaskPlan:
    """Return the plan of a task as the run executed it, with these metrics and cells."""
    recorded, prompts = run.tasks[name], tuple(examples.values())
    task = Task(
        name=name,
        version=recorded.version,
        description="",
        metrics=tuple(metrics),
        stop=tuple(recorded.stop),
        max_new_tokens=recorded.max_new_tokens,
        source=PromptList(prompts),
        path=run.folder,
        prompt_format=recorded.prompt_format or "",
    )
    return TaskPlan(task, prompts, tuple(cells), task.max_new_tokens)


def _columns(run: Run, engine: str | None, step: Step, sample: SampleRecord) -> dict[str, Any]:
    """Return the columns that identify a planned sample, as far as the run determines them."""
    unknown = {
        "block": True,  # blank for a sample that was decoded alone after its batch failed
        "engine": engine is None,
        "pair": run.config.pair.name is None,
        "category": not step.example.prompt,  # the example is not stored
        "run_id": True,  # of the folder
        "place": True,
    }
    return {name: value for name, value in sample.present().items() if not unknown.get(name)}


def _contradictions(run: Run, records: Sequence[SampleRecord]) -> Iterator[str]:
    """Yield what the configuration, the environment and the records say differently."""
    name = run.config.pair.name
    try:
        spec = run.pair
    except UsageError:
        spec = None
    # Models that the user names are compared by their weights instead, once they are loaded.
    if spec is not None and spec.name != name and run.trust.pair is None:
        yield f"the pair is {name}, but its models are those of {spec.name}"
    dtype, loaded = run.loading.dtype, run.environment.models.get("dtype")
    if dtype != AUTO and loaded not in (None, dtype):
        yield f"dtype is {dtype} in the configuration and {loaded} in the environment"
    if len(names := {str(record.run_id) for record in records}) > 1:
        yield f"run_id has {len(names)} values: {listed(sorted(names))}"
    # A worker's device has the name of its machine before it.
    kinds = {_kind(device) for record in records if (device := record.device)}
    device = run.environment.models.get("device")
    if kinds and device is not None and kinds != {_kind(device)}:
        yield f"devices are {listed(sorted(kinds))} in samples and {device} in the environment"


def _kind(device: str) -> str:
    """Return the kind of a device, such as ``cuda`` of ``machine cuda:1``."""
    return str(device).rpartition(" ")[2].partition(":")[0]


def check_examples(
    name: str, recorded: TaskConfig, settings: Settings, examples: Mapping[str, Example], task: Task
) -> findings.Finding:
    """Compare the examples of a task, and its facts in ``config.json``, with the task's data."""
    # A generator is endless, and a run may claim any number.
    count = min(recorded.examples, len(examples) + 1)
    examples_again = task.of_shard(settings.shard_slice, count, settings.seed)
    faults = []
    ids = [example.id for example in examples_again]
    if list(examples) != ids:
        extra, missing = sorted({*examples} - {*ids}), sorted({*ids} - {*examples})
        faults += [f"{example_id} is not an example of the plan" for example_id in extra]
        faults += [f"{example_id} is missing" for example_id in missing]
        faults += ["they are in another order"] * (not faults)
    for example in examples_again:
        stored = examples.get(example.id)
        if stored is not None and stored != example:
            text = findings.difference(asdict(stored), asdict(example))
            text = text or "has more than the task's"
            faults.append(f"{example.id}: {text}")
    described = {"data": task.provenance(), "version": task.version, "stop": list(task.stop)}
    described["prompt_format"] = task.prompt_format
    if text := findings.difference(_without_paths(recorded.plain()), _without_paths(described)):
        faults.append(text)
    subject = f"{name}, {len(examples_again):,} examples"
    return findings.finding_of("examples are those of the task", subject, faults)


def _without_paths(value: Any) -> Any:
    """Return plain values without the paths of files, which differ between machines."""
    if isinstance(value, Mapping):
        return {name: _without_paths(v) for name, v in value.items() if name != "file"}
    return list(value) if isinstance(value, tuple) else value
