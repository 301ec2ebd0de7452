"""What every measuring command does: run the plan, print the table and the results folder."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specbench.analysis.tables.table import Field, Table, percent, with_notes
from specbench.cli import output
from specbench.cli.options import Progress, Workers
from specbench.engine.pairs import Loading
from specbench.errors import RunError, UsageError
from specbench.experiment.cells import STATIC
from specbench.experiment.execute import execute
from specbench.experiment.measurements import doubtful_thoughts
from specbench.experiment.plan import Plan
from specbench.experiment.progress import forecast, progress_bar, step_status
from specbench.experiment.store import Store
from specbench.experiment.workers import Pool, Worker
from specbench.files import stored
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.configuration import DEFAULT_LIMIT
from specbench.runs.model import OK
from specbench.runs.records import TABLE, latest_records, timed_records
from specbench.runs.run import read_run
from specbench.tasks.metrics import AGREEMENT
from specbench.tasks.metrics.sandbox.launch import weakness
from specbench.tasks.prompts import PromptList

if TYPE_CHECKING:
    from specbench.analysis.results import Results
    from specbench.cli.measurement import Measurement, RunFolder
    from specbench.experiment.loader import Loader
    from specbench.serving.client import Client

SHARES = 0.02, 0.1, 0.3  # of scores that differ: equal texts, other draws, other texts
ENOUGH = 100  # prompts; with fewer, intervals are wide


def measure(
    plan: Plan,
    label: str,
    options: Measurement,
    client: Client | None = None,
    margin: float | None = None,
) -> None:
    """Execute a plan and print its tables; with ``--dry-run`` print the plan.

    ``client`` sends requests to servers, if the plan has any. A ``margin``, in points, is what the
    run is to decide about.

    Raises:
        RunError: Some samples failed; all others are on disk and in the table.
        Interrupted: The user stopped the run; the message says what was kept.
    """
    if options.output is not None and not options.fresh:  # the run may have cells already
        plan = plan.added_to(read_run(options.output, required=False).tasks)
    say(plan, options.limit, loads=not options.dry_run)
    if margin is not None:
        output.note(_prompts_for(plan, margin))
    if options.dry_run:
        _print_forecast(plan, options)
        return
    workers = start_workers(options, plan.loading, options, client)
    store = carry_out(plan, label, options, workers)
    _show(store, options.as_json)
    _suggest(plan, store.folder, options.limit or DEFAULT_LIMIT, margin)


def say(plan: Plan, limit: int | None = None, *, loads: bool = True) -> None:
    """Print notes on a plan before it is executed."""
    output.note(*plan.notes)
    if loads and len(plan.part(servers=False)):
        output.note_loading(plan.pair.models)
    tasks = [task_plan.task for task_plan in plan.tasks]
    for unscored in [task for task in tasks if not task.metrics]:
        if isinstance(unscored.source, PromptList):
            tested = any(row.tests for row in unscored.source.rows)
            advice = "pass@1 to run the tests" if tested else ""
            advice = advice or f"{AGREEMENT} to compare with the target's own greedy text"
            output.note(
                f"no references in {unscored.name}, so quality is not measured: add --metric "
                f"{advice}"
            )
    if limit is not None and limit < DEFAULT_LIMIT:
        output.note(
            f"--limit {limit} is for testing only: intervals over so few examples are unreliable"
        )
    for task in plan.tasks if plan.settings.shard is None else ():
        if limit is not None and (count := len(task.examples)) < limit:
            output.note(f"{task.task.name} has {count} examples, fewer than --limit {limit}")
    if plan.executes and not plan.pair.bundled and (weak := weakness()):
        output.note(weak)


def start_workers(
    options: Workers,
    loading: Loading,
    progress: Progress,
    client: Client | None = None,
    loader: Loader | None = None,
) -> AbstractContextManager[Pool]:
    """Return a context of the workers: this process, or with ``--workers`` those of Ray."""
    if (workers := options.workers) is None:
        return nullcontext(Pool(Worker(loader, not progress.no_progress, client)))
    if find_spec("ray") is None:
        raise UsageError("--workers needs Ray: pip install '.[ray]' in specbench's folder")

    @contextmanager
    def started() -> Iterator[Pool]:
        from specbench.experiment.ray_pool import RayPool

        with RayPool(workers, options.ray_address, loading) as pool:
            yield pool

    return started()


def carry_out(
    plan: Plan, label: str, to: RunFolder, workers: AbstractContextManager[Pool]
) -> Store:
    """Execute a plan and return its closed store; workers start once the folder is accepted.

    Raises:
        SpecbenchError: The run failed.
        Interrupted: The user stopped it; the message says what was kept.
    """
    shard = [] if plan.settings.shard is None else [plan.settings.shard.replace("/", "-of-")]
    label = "-".join([label, plan.pair.name, *shard])
    store = Store.open(to.output, label, plan.describe(), to.fresh, _summarise)
    if store.resumed:
        done = store.resumed - store.failed
        output.note(f"resuming {store.folder}: {done} of {len(plan)} samples are done")
    try:
        with (
            store,
            workers as pool,
            progress_bar(len(plan), not to.no_progress) as display,
            _first_interrupt(store) as stop,
        ):
            execute(plan, store, pool, display, stop=stop)
    except KeyboardInterrupt as error:
        progress = f"{store.done} of {len(plan)} samples are in {store.folder}"
        raise output.Interrupted(
            f"interrupted: {progress}; run the same command to resume"
            if store.done
            else "interrupted: no sample was finished"
        ) from error
    if not store.failed and (missing := store.missing(plan.steps())):
        raise RunError(
            f"{len(missing)} of {len(plan)} samples are missing in {store.folder}: run the same "
            "command to decode them"
        )
    return store


def _summarise(folder: Path) -> Results:
    from specbench.analysis.written import write_summary  # a refusal must not import statistics

    return write_summary(folder)


@contextmanager
def _first_interrupt(store: Store) -> Iterator[Callable[[], bool]]:
    """Stop on the first Ctrl-C, but for a record that is being written, and keep what is recorded.

    Texts that are being decoded are lost; the yielded function is for a stop behind a record. A
    library may swallow the exception, so it is raised again each second until it arrives.
    """
    requested = False

    def handler(number: int, frame: Any) -> None:
        nonlocal requested
        if not requested:
            requested = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            output.note("stopping and writing the tables; press Ctrl-C again to stop at once")
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
        if not store.writing:
            raise KeyboardInterrupt

    hook = sys.unraisablehook  # prints what a callback of llama.cpp or a finalizer swallows
    sys.unraisablehook = lambda e: None if e.exc_type is KeyboardInterrupt else hook(e)
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield lambda: requested
    finally:
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, previous in before.items():
            signal.signal(number, previous)


def _show(store: Store, as_json: bool) -> None:
    records = [*latest_records(store.folder), *timed_records(store.folder)]
    if cut := {(r.task, r.sample_id) for r in records if r.prompt_cut}:
        output.note(
            f"{len(cut)} prompts were too long, so their articles or ends were cut: see "
            "--max-prompt-tokens"
        )
    output.note(*doubtful_thoughts(records))
    show_run(store.folder, as_json, results=cast("Results | None", store.results))
    if store.failed:
        first = next(record.error for record in records if record.status != OK)
        raise RunError(
            f"{store.failed} of {store.done} samples failed, the first with: {first}; "
            f"see their status in {store.folder}/samples.jsonl, and run the same command to retry "
            "them"
        )


def show_run(
    folder: Path, as_json: bool = False, further: bool = False, results: Results | None = None
) -> None:
    """Print a run's verdicts and cells, and its folder; ``further`` adds the other metrics."""
    from specbench.analysis.results import Results

    printed: dict[str, Any] = {"results": str(folder)}
    if stored(folder / TABLE).is_file():
        results = results or Results([folder])
        if as_json:
            printed |= {"verdicts": results.verdicts, "cells": results.cells}
            printed["remarks"] = results.remarks
        else:
            tables = results.tables(further=further)
            output.print_table(*with_notes(tables, results.measured_on))
            output.note(*results.remarks)
    if as_json:
        output.print_json(printed)
    else:
        print(f"results: {folder}")


def _prompts_for(plan: Plan, margin: float) -> str:
    """Say how many prompts decide about a margin, by the share of scores that will differ."""
    from specbench.analysis.verdicts.margin import prompts_at_share

    needs = [(f"{prompts_at_share(share, margin / 100):,}", percent(share)) for share in SHARES]
    (few, rarely), *further = needs
    others = " and ".join(f"{need} if {share} do" for need, share in further)
    has = ", ".join(f"{len(part.examples):,} of {part.task.name}" for part in plan.tasks)
    return (
        f"a margin of {margin:g} points needs {few} prompts if {rarely} of the scores differ, "
        f"{others}; this run has {has}"
    )


def _suggest(plan: Plan, folder: Path, limit: int, margin: float | None = None) -> None:
    """Print what to do next with a run: what its result lacks most, and where to see more."""
    if plan.arms:
        comparison = f"compare {folder} --against {plan.arms[0].name} --margin {margin or 2:g}"
        output.next_step(f"specbench {comparison if len(plan.arms) > 1 else f'table {folder}'}")
        return
    same = f"repeat the command with --output {folder}"
    methods = {cell.method for task in plan.tasks for cell in task.cells}
    shard, shards = plan.settings.shard, plan.settings.shard_slice.step
    examples = shards * min(len(task.examples) for task in plan.tasks)
    compared = methods - {AUTOREGRESSIVE, "sd"}
    lacks_front = any(
        part.task.metrics and sum(cell.method == STATIC for cell in part.cells) < 2
        for part in plan.tasks
    )
    is_list = isinstance(plan.tasks[0].task.source, PromptList)
    if "sd" not in methods:
        output.next_step(f"{same} and sd among its methods, to compare with it")
    elif limit - shards < examples < ENOUGH and not is_list:
        more = f"--limit {10 * examples}" + (f" --shard {shard}" if shard else "")
        output.next_step(f"{same} {more}, to narrow the intervals with more prompts")
    elif compared and lacks_front:
        output.next_step(
            f"{same}, static among its methods and --set weight=0.75,0.5,0, to add a front"
        )
    if margin is not None and "sd" in methods and len(methods) > 1:
        output.next_step(f"specbench compare {folder} --against sd --margin {margin:g}")
    elif compared:
        output.next_step(f"specbench compare {folder} --at all; specbench report {folder}")


def _print_forecast(plan: Plan, options: Measurement) -> None:
    """Print one row per cell of a plan, then the memory it needs."""
    from specbench.engine.hub import quiet_libraries

    quiet_libraries(downloads=not options.no_progress)
    with step_status(not options.no_progress) as show:
        show("reading the prompts")
        expected = forecast(plan, Worker())
    if options.as_json:
        facts = {"samples": len(plan), "engine": expected.engine}
        facts |= {"memory_bytes": expected.memory, "free_bytes": expected.free}
        output.print_json({**facts, "download_bytes": expected.download, "cells": expected.rows})
        return
    fields: list[Field[dict[str, Any]]] = [
        ("method", lambda row: row["method"]),
        ("N", lambda row: str(row["draft_length"] or "")),
        ("samples", lambda row: str(row["samples"])),
    ]
    for name, rows_of_task in groupby(expected.rows, lambda row: row["task"]):
        output.print_table(Table.of(rows_of_task, fields, f"{name} on {plan.pair.name}"))
    memory = f"{output.needed_memory(expected.memory, expected.free)}; " if expected.memory else ""
    download = f"{expected.download / 1e9:.1f} GB to download; " if expected.download else ""
    print(f"{len(plan)} samples; {memory}{download}engine {expected.engine}")
