"""Tables of finished runs: ``specbench table`` and ``compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from specbench.analysis.tables.table import with_notes
from specbench.cli import gate
from specbench.cli.finished import SPLITS, Rows, Runs, given_or_newest
from specbench.cli.generate import grouped
from specbench.cli.lookup import pages, print_page
from specbench.cli.options import TableFormat
from specbench.cli.output import (
    CSV,
    JSON,
    LATEX,
    MARKDOWN,
    TEXT,
    console,
    note,
    print_as,
    print_json,
    wrapped,
)
from specbench.config import option
from specbench.errors import UsageError, printable, require, unknown
from specbench.files import shown_path
from specbench.plugins import short_name
from specbench.runs.records import RECORDS, SUMMARY, TABLE
from specbench.runs.run import is_benchmark, read_run, refuse_benchmarks, run_folders, unfinished
from specbench.runs.shards import by_name, missing_shards, summarised_folders

if TYPE_CHECKING:
    import pandas as pd

    from specbench.analysis.results import Results
    from specbench.analysis.tables.table import Table

POSITION = "position"
HELD_EQUAL = ("acceptance", "time", "quality")
MOST_JUDGED = 30  # runs, since the bootstraps of each take up to two seconds
BESIDE_SD, ALL_TABLES = "sd", "all"


def chosen_runs(given: Sequence[Path] | None, rows: Rows, file: str) -> list[Path]:
    """Return the chosen run folders, and print a note for each incomplete run.

    A folder that contains ``file`` is a run. The default is the newest run.
    """
    paths = given_or_newest(given)
    folders = summarised_folders(paths) if file == SUMMARY else run_folders(paths, file)
    folders = without_benchmarks(folders)
    rows.require_in(folders)
    note_unfinished(folders)
    return folders


def without_benchmarks(folders: Sequence[Path]) -> list[Path]:
    """Return the runs with texts, with a note on others; refuse benchmarks alone."""
    runs = [folder for folder in folders if not is_benchmark(folder)]
    if not runs:
        refuse_benchmarks(folders)
    note(*(f"{f} is a benchmark, of times alone: it is left out" for f in folders if f not in runs))
    return runs


def note_unfinished(folders: Sequence[Path]) -> None:
    """Print a note for each incomplete run, and for each run that lacks shards."""
    for folder in folders:
        if state := unfinished(folder):
            note(f"{folder} is incomplete: {state}")
    note(*missing_shards(folders))


class TableOptions(TableFormat):
    """How to show the main table."""

    intervals: bool = option(False, "Show the 95 % interval of every number.")
    paper: bool = option(
        False,
        "Add the numbers that the paper published for the same pair, task, method, temperature and "
        "draft length.",
    )


class TableRows(Rows):
    """Which rows of finished runs a table shows, and by what it splits them."""

    by: list[str] | None = option(
        None,
        "Split every task by a column of its samples; position shows acceptance by position in the "
        "block of drafts instead: marginal and conditional. Repeat or separate by commas.",
        metavar="COLUMN",
        choices=(*SPLITS, POSITION),
    )


@grouped
def table(options: TableOptions, rows: TableRows, runs: Runs = None) -> None:
    """Print the paper's main table from finished runs: methods as rows, tasks as columns.

    It shows acceptance, quality and speedup, and beside them what `compare` shows: differences from
    sd and from mixtures of static weights. There is a table per pair, temperature and draft length.
    Every static weight and every head has its own row; so has the mean of heads of several seeds.
    Of a benchmark it shows the parts of a round of each system, and ratios of systems.
    """
    runs = given_or_newest(runs)
    if len(runs) == 1 and is_benchmark(runs[0]):
        for flag in [*rows.retyped(), *(["--paper"] if options.paper else [])]:
            raise UsageError(f"{runs[0]} is a benchmark, of times alone: omit {flag}")
        print_benchmark(runs[0], options.form)
        return
    if POSITION in (rows.by or ()):
        _by_position(options, rows, runs)
        return

    folders = chosen_runs(runs, rows, SUMMARY)

    from specbench.analysis.results import Results
    from specbench.analysis.tables.main_table import main_table, typeset
    from specbench.analysis.tables.published import beside_published, remarks
    from specbench.analysis.tables.run_tables import without_speedup

    for folder in folders:
        if options.paper and read_run(folder, required=False).loading.dummy:
            note(f"{folder} has random weights (--load-format dummy): not comparable to the paper")
    results = Results(folders, rows.selection(), by_folder=True)
    judged = len(by_name(folders)) <= MOST_JUDGED  # shards are one run
    if not judged:
        note(f"no verdicts beside more than {MOST_JUDGED} runs: name fewer, or use compare")
    comparison = results.comparison if judged else None
    table = main_table(results.summary, results.samples_of_all_methods, comparison)
    if table["value"].isna().all():
        raise UsageError(
            "these runs have no figure of this table: acceptance, quality or tokens/s relative to "
            "autoregressive"
        )
    if options.paper:
        table = beside_published(table)
        # The other formats print these remarks below the table.
        note(*(remarks(table) if options.form in (CSV, JSON) else ()))
    note(*without_speedup(results.cells), *results.remarks)
    settings = results.measured_on if options.form == TEXT else []
    print_as(options.form, table, lambda: with_notes(typeset(table, options.intervals), settings))


def print_benchmark(folder: Path, form: str = TEXT) -> None:
    """Print the parts of a round of each system of a benchmark, and the ratios of systems."""
    if state := unfinished(folder):
        raise UsageError(f"{folder} is incomplete: {state}; run the same command again")

    import pandas as pd

    from specbench.analysis.tables import benchmark

    systems, ratios = benchmark.bench_tables(benchmark.read_benchmark(folder))
    if form == JSON:
        print_json({"systems": systems, "ratios": ratios})
    else:
        if form == TEXT:
            print(benchmark.describe(systems))
        rows = pd.concat([systems, ratios])
        print_as(form, rows, lambda: benchmark.tables(systems, ratios))
    note(*benchmark.warnings(systems))


def _by_position(options: TableOptions, rows: Rows, runs: Sequence[Path] | None) -> None:
    require(not options.paper, "--paper has no numbers by position: omit it or --by")
    folders = chosen_runs(runs, rows, RECORDS)

    from specbench.analysis.results import Results
    from specbench.analysis.statistics.positions import position_tables

    positions = Results(folders, rows.selection(), by_folder=True).positions
    print_as(options.form, positions, lambda: position_tables(positions, options.intervals))


class CompareOptions(gate.GatedFormat):
    """What to compare with, and which tables follow the verdict."""

    at: list[str] | None = option(
        None,
        "Show full tables: the differences from sd, and the distances from the static front where "
        "acceptance, time or quality is equal.",
        metavar="WHAT[,WHAT...]",
        shown="one table, with the front at equal acceptance",
        choices=(BESIDE_SD, *HELD_EQUAL, ALL_TABLES),
    )
    legend: bool = option(
        False, "Print a sentence on each method below the table, and the words of verdicts."
    )
    times: bool = option(False, "With two runs: compare their times even if machine or day differ.")


@grouped
def compare(options: CompareOptions, rows: Rows, runs: Runs = None) -> None:
    """Compare methods with SD and with the static front: a verdict per task and method.

    With two runs, also show what differs between them, and compare the cells that both have, paired
    by sample. With --against, compare with one method, as in `compare RUN --against sd --margin 2`.
    """
    folders = chosen_runs(runs, rows, TABLE)

    import pandas as pd

    from specbench.analysis.results import Results
    from specbench.analysis.tables.verdict_tables import comparison_tables, verdict_tables
    from specbench.analysis.verdicts.compare import Compared, by_task, compare, over_tasks, verdicts
    from specbench.analysis.verdicts.contrasts import ATS, COMPARISON, OWN
    from specbench.runs.frames import first_decodes

    results = Results(folders, rows.selection(), by_folder=True)
    every = results.decodes
    note(*results.remarks)
    if options.against is not None:
        _compare_against(folders, results, rows, options)
        return
    between, beside = _compare_runs(folders, first_decodes(every), rows, options)
    # --method selects the methods to compare; sd and static remain as baselines.
    samples = rows.updated(method=None).selection().of(every)
    methods = rows.selection().methods
    kinds = options.at or ["acceptance"]
    chosen = [kind for kind in ATS if kind in kinds or ALL_TABLES in kinds]
    try:
        drafting = {*map(short_name, samples.loc[samples["draft_length"] > 0, "method"].unique())}
        methods = methods and [*map(short_name, methods)]
        methods = _without_baselines(methods, drafting) if methods else None
        # The verdict needs the fronts at equal acceptance and time.
        needed = {*chosen, "acceptance", "time"}
        compared = compare(samples, [kind for kind in ATS if kind in needed], methods)
    except UsageError as error:
        reason = (between is None and _remedy(results, samples)) or str(error)
        if between is None and options.require_acceptance is None:
            raise UsageError(reason) from error
        note(f"no comparison within a run: {reason}")
        compared = Compared(pd.DataFrame(columns=list(COMPARISON)), [])
    else:
        note(*filter(None, [_remedy(results, samples)]))
    rows_shown = compared.rows[compared.rows["at"].isin([OWN, *chosen])]
    judged = verdicts(compared.rows)
    note(*compared.notes)
    if (
        "quality" in chosen
        and samples.loc[samples["method"] == "sd", "draft_length"].nunique() == 1
    ):
        note("sd was measured at one N; add --draft-length 3,5,7 to compare best N")
    if options.form == JSON:
        print_json({"verdicts": judged, "rows": pd.concat([between, rows_shown])})
    elif options.form == CSV:
        print_as(CSV, pd.concat([between, rows_shown]), list)
    else:
        if between is not None:
            print_as(options.form, between, lambda: beside)
            print()
        if options.at:
            beside_sd = [OWN] if {BESIDE_SD, ALL_TABLES} & {*kinds} else []
            tables = comparison_tables(rows_shown, [*beside_sd, *chosen])
            if not tables and len(rows_shown):
                note(f"no method has a front at equal {' or '.join(chosen)}: see --at {BESIDE_SD}")
        else:
            _print_lines(over_tasks(rows_shown), options)
            tables = list(verdict_tables(rows_shown))
        if tables:
            settings = results.measured_on if options.form == TEXT else []
            print_as(options.form, rows_shown, lambda: with_notes(tables, settings))
            _print_hint(options)
        if options.legend and len(judged):
            print()
            _print_lines(by_task(judged), options)
            _print_words(options)
    gate.hold(options, results, folders, rows)


def _remedy(results: Results, samples: pd.DataFrame) -> str:
    """Say how servers are compared, if the runs have one beside another method; else nothing."""
    present = [*samples["method"].unique()]
    names = [name for name in ("sd", *results.servers, *present) if name in present]
    if not {*results.servers} & {*present} or len({*names}) < 2:
        return ""
    return f"servers are compared with one method of a run: add --against {names[0]} --margin 2"


def _compare_against(
    folders: Sequence[Path], results: Results, rows: Rows, options: CompareOptions
) -> None:
    """Print the verdict on each method against one, then a table per task."""
    import pandas as pd

    from specbench.analysis.tables.verdict_tables import margin_tables
    from specbench.analysis.verdicts.compare import by_task, over_tasks
    from specbench.analysis.verdicts.sampling import UNKNOWN, sampling_verdicts

    arm, repeated = options.against or "", options.noise or []
    for name in {arm, *repeated} - {*results.servers} if repeated else ():
        raise UsageError(f"--noise: {unknown('server of these runs', name, results.servers)}")
    try:
        judged = results.against(arm, options.margin or 0, repeated)
    except UsageError:
        gate.hold(options, results, folders, rows)  # a part that is missing may be the reason
        raise
    is_read = options.form not in (CSV, JSON)
    settings = results.measured_on if options.form == TEXT else []
    _print_lines(over_tasks(judged) if is_read else {}, options)
    print_as(options.form, judged, lambda: with_notes(margin_tables(judged), settings))
    _print_hint(options)
    sentences = [judged[judged["sentence"].notna()]] if options.legend else []
    below = pd.concat([*sentences, sampling_verdicts(judged)])
    if is_read and len(below):
        print()
        _print_lines(by_task(below), options)
    if is_read and options.legend:
        _print_words(options)
    note(*judged.loc[judged["same_texts"].eq(UNKNOWN), "same_texts_sentence"].unique())
    gate.hold(options, results, folders, rows, judged)


def _print_lines(lines: Mapping[str, Sequence[str]], options: CompareOptions) -> None:
    """Print sentences under headings, above or below the tables."""
    for heading, sentences in lines.items():
        print(printable(f"% {heading}" if options.form == LATEX else heading))
        for sentence in map(printable, sentences):
            marked = {MARKDOWN: f"- {sentence}", LATEX: f"% {sentence}"}
            print(marked.get(options.form) or wrapped(sentence, console().width))
        print()


def _print_hint(options: CompareOptions) -> None:
    if options.form == TEXT and not options.legend:
        print("--legend explains all words.")


def _print_words(options: CompareOptions) -> None:
    """Print what the page of statistics says of all words and columns."""
    words = pages()["statistics"].read_text(encoding="utf-8").partition("## Words\n\n")[2]
    if options.form == TEXT:
        print_page(words)
    else:
        print(indent(words, "% ") if options.form == LATEX else words)


def _compare_runs(
    folders: Sequence[Path], samples: pd.DataFrame, rows: Rows, options: CompareOptions
) -> tuple[pd.DataFrame | None, list[Table]]:
    """Compare the second of two runs with the first; return the rows and their tables."""
    if len(folders) != 2 or samples["run_id"].nunique() < 2:  # or shards of one run
        require(not options.times, "--times compares two runs: name two run folders")
        return None, []

    from specbench.analysis.tables.verdict_tables import between_tables, facts_table
    from specbench.analysis.verdicts.two_runs import between_runs, run_differences, why_untimed

    first, second = read_run(folders[0], required=False), read_run(folders[1], required=False)
    apart = None if options.times else why_untimed(first, second)
    for name in first.tasks.keys() & second.tasks.keys():
        if first.tasks[name].version != second.tasks[name].version:
            note(f"the two runs have different versions of {name}, which are not compared")
            samples = samples[samples["task"] != name]
    differences = between_runs(rows.selection().of(samples), times=not apart)
    if differences.empty:
        note("the two runs share no sample of the same cell, so each is compared within itself")
        return None, []
    if apart:
        note(f"times of the two runs are not compared: {apart} (--times compares them anyway)")
    facts = facts_table(run_differences(first, second), *map(shown_path, folders))
    return differences, [facts, *between_tables(differences)]


def _without_baselines(names: Sequence[str], drafting: set[str]) -> list[str]:
    """Return the methods to compare; baselines are in every comparison."""
    from specbench.methods.registry import AUTOREGRESSIVE

    baselines = {"sd", "static", AUTOREGRESSIVE}
    compared = sorted(drafting - baselines)
    choice = (
        f"choose one of {', '.join(compared)}" if compared else "these runs contain no other method"
    )
    for name in names:
        if name not in drafting | {AUTOREGRESSIVE}:
            raise UsageError(f"--method {name!r} is not in these runs: {choice}")
    if not (chosen := [name for name in names if name not in baselines]):
        raise UsageError(f"--method {names[0]!r} is a baseline of the comparison: {choice}")
    return chosen
