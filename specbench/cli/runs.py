"""Commands on finished runs: ``score``, ``verify``, ``trace`` and ``report``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from secrets import randbelow
from typing import Annotated

from specbench.analysis.trace import find_sample, run_decoder, show, written
from specbench.analysis.trace import trace as trace_of
from specbench.cli.finished import FinishedRun, Recorded, Rows, Runs, given_or_newest
from specbench.cli.gate import BOTH, MARGIN
from specbench.cli.generate import grouped
from specbench.cli.measure import show_run
from specbench.cli.options import CodeExecution, JsonOutput, Progress, PromptFiles, output_option
from specbench.cli.output import Interrupted, console, note, picture, print_findings
from specbench.cli.tables import note_unfinished, without_benchmarks
from specbench.config import Options, option
from specbench.errors import IncompleteError, RunError, require
from specbench.experiment.measurements import doubtful_thoughts
from specbench.experiment.progress import progress_bar
from specbench.experiment.rescore import open_run, score_run
from specbench.files import check_parent, stored, write_atomically
from specbench.plugins import short_name
from specbench.runs.records import EXAMPLES, TRACED, latest_records, read_records
from specbench.runs.run import read_run, refuse_benchmarks, require_cells
from specbench.runs.shards import summarised_folders
from specbench.tasks.metrics import METRICS
from specbench.tasks.task import load_task

PAGE = "report.html"


class ScoreOptions(Options):
    """Which metrics to measure."""

    metric: list[str] | None = option(
        None,
        "Metrics to add to those of the run, where they apply; repeat or separate by commas: "
        f"{', '.join(METRICS)}, or FILE.py:FUNCTION, a metric of your own.",
        metavar="NAME",
        complete=lambda: METRICS,
    )


@grouped
def score(run: FinishedRun, options: ScoreOptions, code: CodeExecution, shown: Progress) -> None:
    """Score the texts of a finished run again, without models or data."""
    finished_run = open_run(run, options.metric or [])
    note(*finished_run.notes)
    from specbench.analysis.written import write_summary  # after refusals

    try:
        with progress_bar(finished_run.samples, not shown.no_progress) as report:
            outcome = score_run(finished_run, code.allow_code_execution, report, write_summary)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: score {run} again") from error
    if outcome.withheld:
        note(
            f"the code of {outcome.withheld} samples was not executed, so they have no score: "
            "add --allow-code-execution to execute it"
        )
    note(*doubtful_thoughts(read_records(run)))
    show_run(run, further=True)
    if outcome.failed:
        raise RunError(
            f"{outcome.failed} of {outcome.samples} samples failed, the first with: "
            f"{outcome.first_error}; see their status in {run}/samples.jsonl"
        )


class VerifyOptions(JsonOutput):
    """How much to decode again."""

    limit: int = option(
        5,
        "Samples per cell to decode again; 0 checks the files alone, without models.",
        ge=0,
        flags=("--limit", "-n"),
    )
    seed: int | None = option(
        None,
        "Random seed for choosing the samples. A run's author must not know it beforehand.",
        ge=0,
        shown="drawn anew, and printed",
    )
    metric: list[str] | None = option(
        None, "Metrics of your own that the run names.", metavar="FILE.py:FUNCTION"
    )
    method: list[str] | None = option(
        None,
        "Rules of your own that the run names.",
        flags=("--method", "-m"),
        metavar="FILE.py:FUNCTION",
    )


@grouped
def verify(
    run: FinishedRun,
    options: VerifyOptions,
    models: Recorded,
    data: Annotated[PromptFiles, ("task", "prompts", "folder")],
    code: CodeExecution,
    shown: Progress,
) -> None:
    """Check that a run's files follow from its samples, and decode some samples again.

    Samples are decoded with the models, settings, engine and seed of the run. Their texts, counts
    and scores must be the same; times are not compared. The exit code is 1 after any difference,
    and 3 if samples are missing or failed.
    Nothing that the run names is executed: give its rules, metrics, tasks and models as to `run`.
    """
    verified = read_run(run, models.trust())
    if data.prompts and stored(run / EXAMPLES).is_file():  # cut as the run has cut them
        examples = [e for of_task in verified.examples.values() for e in of_task.values()]
        data = data.updated(cut_prompts=all(e.passage for e in examples))
    tasks = {task.name: task for task in data.tasks()} if data.task or data.prompts else {}
    for typed, name in zip(data.names, [*tasks], strict=True) if data.task else ():
        shots = verified.task(name).data.get("shots")
        if type(shots) is int and shots >= 0:  # with those of the run
            tasks[name] = load_task(typed, data.updated(shots=shots))
    require_cells([run], {"method": [*map(short_name, options.method or ())], "task": [*tasks]})

    from specbench.engine.hub import quiet_libraries
    from specbench.validation import findings as results
    from specbench.validation.verification.decoding import AGAIN
    from specbench.validation.verification.verify import TEXTS, Verification

    verification = Verification(
        verified,
        options.limit,
        randbelow(1_000_000) if options.seed is None else options.seed,
        code.allow_code_execution,
        tuple(options.metric or ()),
        tuple(options.method or ()),
        tasks,
        data.folder,
    )
    note_unfinished([run])
    quiet_libraries(downloads=not shown.no_progress)
    with progress_bar(verification.total, not shown.no_progress) as report:
        findings = list(verification.findings(lambda sample: report(vars(sample))))
    number = results.failures(findings)
    few = [finding for finding in findings if finding.verdict == results.INCOMPLETE]
    checks = {finding.name for finding in findings}
    decoded, texts = AGAIN in checks, ", texts from their tokens" if TEXTS in checks else ""
    differ = any(f.name == AGAIN and f.verdict == results.REPORT for f in findings)
    claim = "verified" if decoded and not differ else f"tables follow from the samples{texts}"
    answer = "" if number or few else results.conclusion(findings, claim, "difference")
    if answer:
        answer += "; times were not checked" + ("" if decoded else ", nothing was decoded again")
    if answer and verification.without_data:
        answer += f"; the data of {', '.join(verification.without_data)} were not compared"
    if answer and differ:
        answer += "; samples decoded again differ, and whether rounding explains it was not tested"
    after = [f"{answer}; the last row says what was not checked"] if answer else []
    print_findings(
        options.as_json, list(map(asdict, findings)), results.findings_table(findings), after=after
    )
    if any(finding.name == AGAIN and finding.verdict == results.FAILED for finding in findings):
        note(
            "on other hardware or with other versions, rounding may change a token and with it the "
            "rest of a text"
        )
    if number:
        raise RunError(f"{number} checks of {run} failed: see above")
    if few:
        reasons = "; ".join(finding.sentence for finding in few)
        raise IncompleteError(f"{run} shows no difference, but is not whole: {reasons}")


class TraceOptions(Options):
    """Which sample to show, and where."""

    sample: str | None = option(
        None,
        "Sample id, as in samples.csv.",
        metavar="ID",
        shown="one with rejected drafts and many mismatches, of a learned rule if there is one",
    )
    task: str | None = option(None, "Task.", flags=("--task", "-t"), metavar="NAME")
    method: str | None = option(
        None,
        "Method; with parameters as in tables, for instance 'static w=0.4', and with the turn of a "
        "conversation, as in 'sd turn 2'.",
        flags=("--method", "-m"),
        metavar="NAME",
    )
    output: Path | None = output_option(
        "SVG picture to write, for a paper.", "the terminal", metavar="FILE.svg"
    )


@grouped
def trace(run: FinishedRun, options: TraceOptions, models: Recorded) -> None:
    """Show one sample token by token: agreed, mismatched, rejected and corrected tokens.

    Shading shows the weight on the target. Without colours, tokens are marked as {~mismatch~}
    [-rejected-] {+correction+}. Mismatches are accepted tokens that are not the target's likeliest.
    """
    refuse_benchmarks([run])
    if options.output:
        require(
            options.output.suffix == ".svg",
            f"--output {options.output}: use the suffix .svg; `specbench report` writes HTML",
        )
        check_parent(options.output)
    source = read_run(run, models.trust())
    # The method may be a label, which begins with its name; reading all records takes seconds.
    chosen = {"task": options.task, "method": options.method and options.method.split(" ")[0]}
    require_cells([run], {column: [value] for column, value in chosen.items() if value})
    records = [r for r in latest_records(run, TRACED) if r.method not in source.servers]
    require(bool(records), f"servers decoded {run}, and do not tell rejected tokens: trace another")
    record, name = find_sample(
        records, sample=options.sample, task=options.task, method=options.method
    )
    examples = source.examples if stored(run / EXAMPLES).is_file() else {}
    example = examples.get(record.task, {}).get(record.sample_id)
    turn = record.turn or 0
    has_prompt = example is not None and turn <= len(example.turns)
    prompt = example.scored(record).prompt if example and has_prompt else ""
    trace = trace_of(record, name, run_decoder(source), prompt)
    if options.output is None:
        show(trace, console())
        return
    write_atomically(options.output, picture(written(trace)))
    print(options.output)


class ReportOptions(Options):
    """What the page compares, and where it goes."""

    against: str | None = option(
        None,
        "Compare every other method with this one, such as a server, as `compare` does.",
        metavar="METHOD",
        shown="sd and the static front",
        needs={"margin": BOTH},
    )
    margin: float | None = MARGIN
    output: Path | None = output_option(
        "File to write.", f"{PAGE} in the last run's folder", metavar="FILE"
    )


@grouped
def report(options: ReportOptions, rows: Rows, models: Recorded, runs: Runs = None) -> None:
    """Write one HTML file about finished runs: tables, figures, traces, commands.

    The file is self-contained and loads nothing from the network.
    """
    paths = given_or_newest(runs)
    folders = without_benchmarks(summarised_folders(paths))
    rows.require_in(folders)
    path = options.output or paths[-1] / PAGE
    check_parent(path)

    from specbench.analysis.report.build import Baseline, build

    baseline = options.against and Baseline(options.against, options.margin or 0)
    page = build(folders, rows.selection(), models.trust(), baseline or None)
    note(*page.notes)
    write_atomically(path, page.html)
    print(path)
