"""What every measuring command does with its plan: run it, show the table, say where files are."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli.options.cluster import ALONE, Cluster
from specbench.cli.options.results import Results
from specbench.cli.output import Interrupted, note
from specbench.engine.settings import Loading
from specbench.errors import RunError
from specbench.experiment.plan import DEFAULT_LIMIT, Plan

if TYPE_CHECKING:
    from specbench.cluster.ray_pool import Pool
    from specbench.experiment.execute import Loader
    from specbench.experiment.store import Store


def measure(
    plan: Plan,
    label: str,
    results: Results,
    *,
    limit: int | None,
    show: Callable[[Path], None] | None = None,
    cluster: Cluster = ALONE,
) -> None:
    """Carry out a plan and print its table, or with ``--dry-run`` the plan.

    Args:
        plan: What to measure.
        label: The command, for the folder's name.
        results: Where the run goes.
        limit: The limit the user asked for.
        show: Prints the table of a run's folder; by default a row per cell for each task.
        cluster: How many workers measure, and where.

    Raises:
        RunError: Samples failed; everything else is on disk and in the table.
        Interrupted: The user stopped the run; the message says what was kept.
    """
    say(plan, limit)
    if results.dry_run:
        from specbench.cli.forecast import print_forecast
        from specbench.experiment.progress import quiet_libraries

        quiet_libraries(downloads=not results.no_progress and sys.stderr.isatty())
        print_forecast(plan)
        return
    with pool(cluster, plan.loading) as workers:
        store = carry_out(plan, label, results, workers)
    _show(store, show)


def say(plan: Plan, limit: int | None = None) -> None:
    """Tell what the user should know before a plan is carried out."""
    for text in plan.notes:
        note(text)
    if limit is not None and limit < DEFAULT_LIMIT:
        note(f"--limit {limit} is for testing: intervals over so few examples say little")
    if plan.executes and not plan.pair.bundled:
        from specbench.metrics.sandbox.launch import weakness

        if weak := weakness():
            note(weak)


@contextmanager
def pool(cluster: Cluster, loading: Loading, tensors: bool = False) -> Iterator[Pool | None]:
    """Have workers while the context lasts; yields None where this process is alone.

    Args:
        cluster: How many, and where.
        loading: How they load a pair.
        tensors: They send back more than small things.

    Raises:
        UsageError: There is no Ray, or it has less than the user asks for.
    """
    if cluster.workers is None:
        yield None
        return

    from specbench.cluster.ray_pool import Pool

    with Pool(cluster.workers, cluster.ray_address, loading, tensors) as workers:
        yield workers


def carry_out(
    plan: Plan,
    label: str,
    results: Results,
    workers: Pool | None,
    loader: Loader | None = None,
) -> Store:
    """Carry out a plan into its folder and return the store, which is closed by then.

    Args:
        plan: What to measure.
        label: The command, for the folder's name.
        results: Where the run goes.
        workers: Who measures; None is this process.
        loader: Has the pair perhaps, where this process measures.

    Raises:
        SpecbenchError: The run failed.
        Interrupted: The user stopped it; the message says what was kept.
    """
    # Everything that can be refused has been by now; only here do the models' libraries load.
    from specbench.experiment.store import Store

    store = Store.open(results.output, f"{label}-{plan.pair.name}", plan.describe(), results.fresh)
    if store.resumed:
        there = store.resumed - store.failed
        note(f"going on with {store.folder}: {there} of {len(plan)} samples are there")
    measure_with = partial(_alone, loader) if workers is None else partial(_together, workers)
    try:
        with _first_interrupt() as stop, store:
            measure_with(plan, store, not results.no_progress, stop)
    except KeyboardInterrupt as error:
        kept = f"{store.done} of {len(plan)} samples are in {store.folder}"
        raise Interrupted(
            f"interrupted: {kept}; the same command goes on from there"
            if store.done
            else "interrupted: no sample was finished"
        ) from error
    return store


def _alone(
    loader: Loader | None, plan: Plan, store: Store, shown: bool, stop: Callable[[], bool]
) -> None:
    from specbench.experiment.execute import execute
    from specbench.experiment.progress import progress_bar, quiet_libraries

    quiet_libraries(downloads=shown and sys.stderr.isatty())
    with progress_bar(len(plan), shown) as report:
        execute(plan, store, report, stop=stop, note=note, loader=loader)


def _together(
    workers: Pool, plan: Plan, store: Store, shown: bool, stop: Callable[[], bool]
) -> None:
    from specbench.cluster.execute import execute
    from specbench.cluster.view import crew_view

    with crew_view(len(plan), shown) as view:
        execute(
            plan,
            store,
            view.report,
            workers.for_plan(plan),
            workers.size,
            stop=stop,
            note=note,
            watch=view.watch,
        )


@contextmanager
def _first_interrupt() -> Iterator[Callable[[], bool]]:
    """Take the first Ctrl-C as a wish to stop after the sample at hand, the second as always."""
    asked = False

    def handler(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note("stopping after this sample; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _show(store: Store, show: Callable[[Path], None] | None) -> None:
    from specbench.cli.tables import print_run
    from specbench.experiment.records import cut_prompts, failures
    from specbench.experiment.tables import TABLE

    if cut := cut_prompts(store.folder):
        note(f"{cut} prompts were cut at the end of their article: see --max-prompt-tokens")
    if (store.folder / TABLE).is_file():
        (show or print_run)(store.folder)
    print(f"results: {store.folder}")
    if store.failed:
        first = next(failures(store.folder))
        raise RunError(
            f"{store.failed} of {store.done} samples failed, the first with: {first}; "
            f"each is in {store.folder}/samples.jsonl with its status, and the same command tries "
            "them again"
        )
