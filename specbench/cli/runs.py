"""What else is done with finished runs: ``specbench score``, ``trace`` and ``report``."""

from __future__ import annotations

from pathlib import Path

from specbench.cli.generate import grouped
from specbench.cli.measure import show_run
from specbench.cli.options import CodeExecution, FinishedRun, Progress, Rows, Runs, output_option
from specbench.cli.output import Interrupted, console, note
from specbench.config import Options, option
from specbench.errors import RunError, UsageError
from specbench.metrics import METRICS

PAGE = "report.html"


class ScoreOptions(Options):
    """What is measured."""

    metric: list[str] | None = option(
        None,
        "Metrics to measure beside those of the run, where they apply; repeat or separate by "
        f"commas: {', '.join(METRICS)}.",
        metavar="NAME",
        complete=lambda: METRICS,
    )


@grouped
def score(run: FinishedRun, asked: ScoreOptions, code: CodeExecution, shown: Progress) -> None:
    """Score the texts of a finished run again; no model and no data are needed."""
    from specbench.experiment.progress import progress_bar
    from specbench.experiment.rescore import open_run, score_run

    found = open_run(run, asked.metric or [])
    note(*found.notes)
    try:
        with progress_bar(found.samples, not shown.no_progress) as report:
            outcome = score_run(found, code.allow_code_execution, report)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: score {run} again to have it whole") from error
    if outcome.withheld:
        note(
            f"the programs of {outcome.withheld} samples were not run and have no score: "
            "give --allow-code-execution to run them"
        )
    show_run(run)
    if outcome.failed:
        raise RunError(
            f"{outcome.failed} of {outcome.samples} samples failed, the first with: "
            f"{outcome.first_error}; each is in {run}/samples.jsonl with its status"
        )


class TraceOptions(Options):
    """Which sample, and where it is shown."""

    sample: str = option(..., "The sample's id, as in samples.csv.", metavar="ID")
    task: str | None = option(
        None, "Its task, where several have such a sample.", flags=("--task", "-t"), metavar="NAME"
    )
    method: str | None = option(
        None,
        "Its method, where there were several; with parameters as in tables, for instance "
        "'static w=0.4'.",
        flags=("--method", "-m"),
        metavar="NAME",
    )
    repeat: int = option(0, "Which of its repeats, from 0.", metavar="K")
    html: Path | None = option(None, "Write a page for a browser instead.", metavar="FILE")


@grouped
def trace(run: FinishedRun, asked: TraceOptions) -> None:
    """Show one sample token by token: agreed, mismatched, rejected and corrected tokens.

    A shade is the weight on the target. Without colours: {~mismatch~} [-rejected-] {+correction+}.
    """
    from specbench.experiment.records import TRACED, latest_records
    from specbench.trace.tokens import Unreadable
    from specbench.trace.trace import find_sample, run_decoder
    from specbench.trace.trace import trace as trace_of

    record, name = find_sample(
        latest_records(run, TRACED),
        asked.sample,
        task=asked.task,
        method=asked.method,
        repeat=asked.repeat,
    )
    try:
        found = trace_of(record, name, run_decoder(run))
    except Unreadable as error:
        raise UsageError(f"{run} holds this sample incompletely ({error}): run again") from error
    if asked.html is None:
        from specbench.trace.terminal import show

        show(found, console())
    else:
        from specbench.files import write_atomically
        from specbench.report.pages import trace_page

        write_atomically(asked.html, trace_page(found))
        print(asked.html)


class ReportOptions(Options):
    """Where the page goes."""

    output: Path | None = output_option(
        "The page.", f"{PAGE} in the last run's folder", metavar="FILE"
    )


@grouped
def report(asked: ReportOptions, rows: Rows, runs: Runs = None) -> None:
    """Make one HTML file of finished runs: table, figures, traces and how to run it again.

    It holds all that it shows and fetches nothing, so it can be sent or put on a web page as it is.
    """
    from specbench.experiment.folders import newest_run
    from specbench.files import write_atomically
    from specbench.report.build import build

    folders = runs or [newest_run()]
    page = build(folders, rows.selection())
    note(*page.notes)
    path = asked.output or folders[-1] / PAGE
    write_atomically(path, page.html)
    print(path)
