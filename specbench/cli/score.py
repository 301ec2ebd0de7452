"""``specbench score``: the metrics of a finished run anew, from its stored texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.generate import completer, flag
from specbench.cli.options import CodeExecution, NoProgress
from specbench.cli.output import Interrupted, note, print_table
from specbench.errors import RunError
from specbench.metrics import METRICS


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Metrics to measure beside those of the run, where they apply; repeat or "
            f"separate by commas: {', '.join(METRICS)}.",
            show_default=False,
            autocompletion=completer(lambda: METRICS),
        ),
    ] = None,
    allow_code_execution: Annotated[bool, flag(CodeExecution, "allow_code_execution")] = False,
    no_progress: NoProgress = False,
) -> None:
    """Score the texts of a finished run again; no model and no data are needed."""
    further = [name.strip() for names in metric or () for name in names.split(",")]

    from specbench.analysis.run_tables import run_tables
    from specbench.experiment.progress import progress_bar
    from specbench.experiment.rescore import open_run, score_run
    from specbench.experiment.tables import TABLE

    found = open_run(run, further)
    for text in found.notes:
        note(text)
    try:
        with progress_bar(found.samples, not no_progress) as report:
            outcome = score_run(found, allow_code_execution, report)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: score {run} again to have it whole") from error
    if outcome.withheld:
        note(
            f"the programs of {outcome.withheld} samples were not run and have no score: "
            "give --allow-code-execution to run them"
        )
    if (run / TABLE).is_file():
        print_table(*run_tables(run))
    print(f"results: {run}")
    if outcome.failed:
        raise RunError(
            f"{outcome.failed} of {outcome.samples} samples failed, the first with: "
            f"{outcome.first_error}; each is in {run}/samples.jsonl with its status"
        )
