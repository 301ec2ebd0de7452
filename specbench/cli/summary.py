"""``specbench summary``: the tables of many runs as one, for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.generate import grouped, one_of
from specbench.cli.options import Rows, Runs
from specbench.cli.runs import chosen_runs
from specbench.errors import UsageError
from specbench.files import digits, write_atomically

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary"
RUNS = "runs"
FRAMES = (SUMMARY, "cells", "samples", "rounds", RUNS)
CSV, PARQUET = FORMATS = ("csv", "parquet")


@grouped
def summary(
    rows: Rows,
    runs: Runs = None,
    frame: Annotated[
        str,
        one_of(
            "--frame",
            FRAMES,
            "What has a row: a figure of a cell (summary), a cell (cells), a sample, a round or a "
            "run.",
        ),
    ] = SUMMARY,
    format: Annotated[
        str | None,
        one_of(
            "--format", FORMATS, show_default="what the output ends in; csv where it is printed"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write.", show_default="printed"),
    ] = None,
) -> None:
    """Put the tables of finished runs into one, with every figure and its 95 % interval.

    The tables are taken as the runs have written them. Their columns: specbench list columns.
    """
    named = output.suffix.removeprefix(".").lower() if output else CSV
    if format is None and named not in FORMATS:
        raise UsageError(
            f"--output {output} does not say which format: let it end in .{CSV} or .{PARQUET}, or "
            "give --format"
        )
    if (chosen := format or named) == PARQUET and output is None:
        raise UsageError("Parquet is not for reading: name a file for it with --output")

    if frame == RUNS and (typed := rows.retyped()):
        raise UsageError(f"{typed[0]} leaves no part of a run: leave it out with --frame {RUNS}")

    from specbench.experiment.folders import CONFIG
    from specbench.experiment.tables import TABLE
    from specbench.results import Results

    folders = chosen_runs(runs, TABLE, CONFIG)
    table: pd.DataFrame = getattr(Results(folders, rows.selection()), frame)
    if output is None:
        table.to_csv(sys.stdout, index=False, float_format=digits)
        return
    text = chosen == CSV
    write_atomically(
        output,
        table.to_csv(index=False, float_format=digits) if text else table.to_parquet(index=False),
    )
    print(output)
