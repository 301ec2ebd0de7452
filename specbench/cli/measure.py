"""What every measuring command does with its plan: run it, show the table, say where files are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.output import Interrupted, note
from specbench.errors import RunError
from specbench.experiment.plan import DEFAULT_LIMIT, Plan

if TYPE_CHECKING:
    from specbench.experiment.store import Store


def measure(
    plan: Plan,
    label: str,
    *,
    limit: int | None,
    output: Path | None,
    progress: bool,
    show: Callable[[Path], None] | None = None,
) -> None:
    """Carry out a plan and print its table.

    Args:
        plan: What to measure.
        label: The command, for the folder's name.
        limit: The limit the user asked for.
        output: The folder the user asked for.
        progress: Show a progress bar where stderr is a terminal.
        show: Prints the table of a run's folder; by default a row per cell for each task.

    Raises:
        RunError: Samples failed; everything else is on disk and in the table.
        Interrupted: The user stopped the run; the message says what was kept.
    """
    for text in plan.notes:
        note(text)
    if limit is not None and limit < DEFAULT_LIMIT:
        note(f"--limit {limit} is for testing: intervals over so few examples say little")

    if plan.executes and not plan.pair.bundled:
        from specbench.metrics.sandbox.launch import weakness

        if weak := weakness():
            note(weak)

    # Everything that can be refused has been by now; only here do the models' libraries load.
    from specbench.experiment.execute import execute
    from specbench.experiment.progress import progress_bar, quiet_libraries
    from specbench.experiment.store import Store

    store = Store.create(output, f"{label}-{plan.pair.name}", plan.describe())
    quiet_libraries(downloads=progress and sys.stderr.isatty())
    try:
        with store, progress_bar(len(plan), progress) as report:
            execute(plan, store, report)
    except KeyboardInterrupt as error:
        kept = f"{store.done} of {len(plan)} samples are in {store.folder}" if store.done else ""
        raise Interrupted(f"interrupted: {kept or 'no sample was finished'}") from error
    _show(store, show)


def _show(store: Store, show: Callable[[Path], None] | None) -> None:
    from specbench.cli.tables import print_run
    from specbench.experiment.store import TABLE, cut_prompts, failures

    if cut := cut_prompts(store.folder):
        note(f"{cut} prompts were cut at the end of their article: see --max-prompt-tokens")
    if (store.folder / TABLE).is_file():
        (show or print_run)(store.folder)
    print(f"results: {store.folder}")
    if store.failed:
        first = next(failures(store.folder))
        raise RunError(
            f"{store.failed} of {store.done} samples failed, the first with: {first}; "
            f"each is in {store.folder}/samples.jsonl with its status"
        )
