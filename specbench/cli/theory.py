"""``specbench theory``: what theory predicts of finished runs, beside what was measured."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specbench.cli.generate import grouped, one_of
from specbench.cli.options import Rows, Runs
from specbench.cli.output import note, print_table
from specbench.cli.runs import chosen_runs
from specbench.errors import SpecbenchError, require_at_least

TEXT, MARKDOWN, CSV = FORMATS = ("text", "markdown", "csv")


@grouped
def theory(
    rows: Rows,
    runs: Runs = None,
    front_gap: Annotated[
        int | None,
        typer.Option(
            "--front-gap",
            metavar="TEXTS",
            help="Also load each run's models, read so many texts of each method and task, and "
            "measure how far its rule lies off the front of rejection and bias.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str,
        one_of(
            "--format",
            FORMATS,
            "A csv has a row per figure, with both intervals and that of the difference.",
        ),
    ] = TEXT,
) -> None:
    """Print what theory predicts of finished runs beside what was measured, with differences.

    Acceptance, accepted lengths and tokens per round are predicted from the probabilities that the
    rules recorded before any draft was drawn.
    """
    require_at_least(1, "--front-gap", front_gap)

    import pandas as pd

    from specbench.experiment.folders import read_run
    from specbench.experiment.progress import quiet_libraries
    from specbench.experiment.records import PACKED, RECORDS
    from specbench.table import to_markdown
    from specbench.theory.front import bytes_ratio, front_gaps
    from specbench.theory.table import shown, theory_table

    quiet_libraries(downloads=sys.stderr.isatty())
    tables = []
    for folder in chosen_runs(runs, RECORDS, PACKED):
        run, ratio = read_run(folder), None
        try:
            ratio = bytes_ratio(run)
        except SpecbenchError as error:
            note(f"the memory-bound speed-up is left out: {error}")
        tables.append(theory_table(run, ratio))
        if front_gap is not None:
            tables.append(front_gaps(run, front_gap))
    table = rows.selection().of(pd.concat(tables, ignore_index=True))
    if format == CSV:
        print(table.to_csv(index=False), end="")
    elif format == MARKDOWN:
        print(to_markdown(*shown(table)), end="")
    else:
        print_table(*shown(table))
