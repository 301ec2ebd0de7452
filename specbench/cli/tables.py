"""Tables of finished runs: ``specbench table``, ``compare``, ``theory`` and ``summary``."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from specbench.cli.generate import grouped
from specbench.cli.options import Rows, Runs, output_option
from specbench.cli.output import CSV, LATEX, MARKDOWN, TEXT, note, print_as
from specbench.config import Options, option
from specbench.errors import SpecbenchError, UsageError
from specbench.files import digits, write_atomically

PARQUET = "parquet"
RUNS = "runs"
HELD_EQUAL = ("acceptance", "time", "quality", "hypervolume")


def chosen_runs(given: Sequence[Path] | None, *files: str) -> list[Path]:
    """Return the folders of the runs that are meant, and say which of them are not whole.

    Args:
        given: Folders of runs or of many runs; without any, the newest run under ``results/``.
        files: What makes a folder one of a run: any of these is in it.

    Raises:
        UsageError: There is none.
    """
    from specbench.analysis.frames import run_folders
    from specbench.experiment.folders import newest_run

    folders = run_folders(given or [newest_run()], *files)
    note_unfinished(folders)
    return folders


def note_unfinished(folders: Iterable[Path]) -> None:
    """Say which runs are not whole."""
    from specbench.experiment.folders import unfinished

    for folder in folders:
        if state := unfinished(folder):
            note(f"{folder} is not a whole run: {state}")


class TableOptions(Options):
    """How the main table is shown."""

    format: str = option(
        TEXT, "A csv has a row per number, with its interval.", choices=(TEXT, MARKDOWN, LATEX, CSV)
    )
    intervals: bool = option(False, "Show the 95 % interval of every number.")
    against: str | None = option(
        None,
        "Put the numbers that the paper published beside one's own, with the difference, where "
        "pair, task, method, temperature and draft length are the same.",
        choices=("paper",),
    )


@grouped
def table(asked: TableOptions, rows: Rows, runs: Runs = None) -> None:
    """Print the paper's main table from finished runs: methods down, tasks across.

    Acceptance, quality and speed-up, a table for each pair, temperature and draft length. Every
    static weight and every head has a row of its own.
    """
    from specbench.analysis.frames import read_samples, read_summary
    from specbench.analysis.main_table import NEEDED, main_table, typeset
    from specbench.analysis.published import beside_published, remarks
    from specbench.analysis.run_tables import NO_BASELINE
    from specbench.analysis.summary import SPEEDUP
    from specbench.experiment.folders import read_run
    from specbench.experiment.records import SUMMARY

    folders = chosen_runs(runs, SUMMARY)
    for folder in folders:
        if asked.against and read_run(folder, required=False).loading.dummy:
            note(f"{folder} has random weights (--load-format dummy): not what the paper measured")
    # Samples of methods that are not shown may still be what a speed-up is over.
    summary = rows.selection().of(read_summary(*folders))
    shown = main_table(summary, read_samples(*folders, only=NEEDED))
    if asked.against:
        shown = beside_published(shown)
        # The other formats say it below the table.
        note(*(remarks(shown) if asked.format == CSV else ()))
    if not ((shown["figure"] == SPEEDUP) & shown["value"].notna()).any():
        note(NO_BASELINE)
    print_as(asked.format, shown, lambda: typeset(shown, asked.intervals))


class CompareOptions(Options):
    """What is held equal."""

    at: str | None = option(
        None,
        f"What is held equal; {HELD_EQUAL[-1]} is the area under each method's front.",
        metavar="WHAT",
        shown="all four",
        choices=HELD_EQUAL,
    )
    format: str = option(TEXT, "", choices=(TEXT, MARKDOWN, CSV))


@grouped
def compare(asked: CompareOptions, rows: Rows, runs: Runs = None) -> None:
    """Compare methods with SD, and with the static front at equal acceptance, time and quality."""
    from specbench.analysis.compare import ATS, compare
    from specbench.analysis.compare_tables import comparison_tables
    from specbench.analysis.frames import read_samples
    from specbench.experiment.records import TABLE

    folders = chosen_runs(runs, TABLE)
    # --method chooses which methods are placed; all are compared with sd and static.
    samples = rows.updated(method=None).selection().of(read_samples(*folders))
    methods = rows.selection().methods
    _check_methods(methods or (), set(samples.loc[samples["draft_length"] > 0, "method"]))
    ats = [known for known in ATS if asked.at in (None, known)]
    found = compare(samples, ats, methods)
    note(*found.notes)
    if "quality" in ats and samples.loc[samples["method"] == "sd", "draft_length"].nunique() == 1:
        note("sd was measured at one N; add --draft-length 3,5,7 to compare best N")
    print_as(asked.format, found.rows, lambda: comparison_tables(found.rows))


def _check_methods(names: Collection[str], drafting: set[str]) -> None:
    """Refuse methods that the runs do not have, or that all others are compared with."""
    baselines = drafting & {"sd", "static"}
    placed = sorted(drafting - baselines)
    others = f"name one of {', '.join(placed)}" if placed else "these runs hold no other"
    for name in names:
        if name not in placed:
            is_baseline = name in baselines
            why = "is what methods are compared with" if is_baseline else "cannot be compared here"
            raise UsageError(f"--method {name!r} {why}: {others}")


class TheoryOptions(Options):
    """What is predicted."""

    front_gap: int | None = option(
        None,
        "Also load each run's models, read so many texts of each method and task, and measure how "
        "far its rule lies off the front of rejection and bias.",
        ge=1,
        metavar="TEXTS",
    )
    format: str = option(
        TEXT,
        "A csv has a row per figure, with both intervals and that of the difference.",
        choices=(TEXT, MARKDOWN, CSV),
    )


@grouped
def theory(asked: TheoryOptions, rows: Rows, runs: Runs = None) -> None:
    """Print what theory predicts of finished runs beside what was measured, with differences.

    Acceptance, accepted lengths and tokens per round are predicted from the probabilities that the
    rules recorded before any draft was drawn.
    """
    import pandas as pd

    from specbench.experiment.folders import read_run
    from specbench.experiment.progress import quiet_libraries
    from specbench.experiment.records import PACKED, RECORDS
    from specbench.theory.front import bytes_ratio, front_gaps
    from specbench.theory.table import shown, theory_table

    quiet_libraries(downloads=True)
    tables = []
    for folder in chosen_runs(runs, RECORDS, PACKED):
        run, ratio = read_run(folder), None
        try:
            ratio = bytes_ratio(run)
        except SpecbenchError as error:
            note(f"the memory-bound speed-up is left out: {error}")
        tables.append(theory_table(run, ratio))
        if asked.front_gap is not None:
            tables.append(front_gaps(run, asked.front_gap))
    found = rows.selection().of(pd.concat(tables, ignore_index=True))
    print_as(asked.format, found, lambda: shown(found))


class SummaryOptions(Options):
    """Which table is made of several, and where it goes."""

    frame: str = option(
        "summary",
        "What has a row: a figure of a cell (summary), a cell (cells), a sample, a round or a run.",
        choices=("summary", "cells", "samples", "rounds", RUNS),
    )
    format: str | None = option(
        None, "", shown="what the output ends in; csv where it is printed", choices=(CSV, PARQUET)
    )
    output: Path | None = output_option("File to write.", "printed")


@grouped
def summary(asked: SummaryOptions, rows: Rows, runs: Runs = None) -> None:
    """Put the tables of finished runs into one, with every figure and its 95 % interval.

    The tables are taken as the runs have written them. Their columns: specbench list columns.
    """
    output = asked.output
    form = asked.format or (output.suffix.removeprefix(".").lower() if output else CSV)
    if form not in (CSV, PARQUET):
        raise UsageError(
            f"--output {output} does not say which format: let it end in .{CSV} or .{PARQUET}, or "
            "give --format"
        )
    if form == PARQUET and output is None:
        raise UsageError("Parquet is not for reading: name a file for it with --output")
    if asked.frame == RUNS and (typed := rows.retyped()):
        raise UsageError(f"{typed[0]} leaves no part of a run: leave it out with --frame {RUNS}")

    from specbench.experiment.folders import CONFIG
    from specbench.experiment.records import TABLE
    from specbench.results import Results

    folders = chosen_runs(runs, TABLE, CONFIG)
    found = getattr(Results(folders, rows.selection()), asked.frame)
    if output is None:
        found.to_csv(sys.stdout, index=False, float_format=digits)
        return
    csv = form == CSV
    write_atomically(
        output,
        found.to_csv(index=False, float_format=digits) if csv else found.to_parquet(index=False),
    )
    print(output)
