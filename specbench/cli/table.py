"""``specbench table``: the paper's main table from one's own runs."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli.generate import grouped, one_of
from specbench.cli.options import Rows, Runs
from specbench.cli.output import note, print_table
from specbench.cli.runs import chosen_runs

TEXT, MARKDOWN, LATEX, CSV = FORMATS = ("text", "markdown", "latex", "csv")
PAPER = "paper"


@grouped
def table(
    rows: Rows,
    runs: Runs = None,
    format: Annotated[
        str,
        one_of("--format", FORMATS, "A csv has a row per number, with its interval."),
    ] = TEXT,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Show the 95 % interval of every number.")
    ] = False,
    against: Annotated[
        str | None,
        one_of(
            "--against",
            [PAPER],
            "Put the numbers that the paper published beside one's own, with the difference, "
            "where pair, task, method, temperature and draft length are the same.",
            show_default=False,
        ),
    ] = None,
) -> None:
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
    from specbench.experiment.tables import SUMMARY
    from specbench.table import to_latex, to_markdown

    folders = chosen_runs(runs, SUMMARY)
    for folder in folders:
        if against and read_run(folder, required=False).loading.dummy:
            note(f"{folder} has random weights (--load-format dummy): not what the paper measured")
    # Samples of methods that are not shown may still be what a speed-up is over.
    summary = rows.selection().of(read_summary(*folders))
    shown = main_table(summary, read_samples(*folders, only=NEEDED))
    if against:
        shown = beside_published(shown)
        # The other formats say it below the table.
        for remark in remarks(shown) if format == CSV else ():
            note(remark)
    if not ((shown["figure"] == SPEEDUP) & shown["value"].notna()).any():
        note(NO_BASELINE)
    if format == CSV:
        print(shown.to_csv(index=False), end="")
    elif format == TEXT:
        print_table(*typeset(shown, intervals))
    else:
        write = {MARKDOWN: to_markdown, LATEX: to_latex}[format]
        print(write(*typeset(shown, intervals)), end="")
