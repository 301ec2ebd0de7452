"""``specbench summary``: the tables of many runs as one, for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.options.groups import changed, grouped
from specbench.cli.options.rows import Rows
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
    runs: o.Runs = None,
    frame: Annotated[
        str,
        typer.Option(
            "--frame",
            metavar="FRAME",
            help="What has a row: a figure of a cell (summary), a cell (cells), a sample, a round "
            f"or a run. One of {', '.join(FRAMES)}.",
            autocompletion=completer(lambda: FRAMES),
        ),
    ] = SUMMARY,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"One of {', '.join(FORMATS)}.",
            show_default="what the output ends in; csv where it is printed",
            autocompletion=completer(lambda: FORMATS),
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
    if frame not in FRAMES:
        raise UsageError(f"there is no frame {frame!r}: choose one of {', '.join(FRAMES)}")
    if format not in (None, *FORMATS):
        raise UsageError(f"--format cannot be {format!r}: choose {' or '.join(FORMATS)}")
    named = output.suffix.removeprefix(".").lower() if output else CSV
    if format is None and named not in FORMATS:
        raise UsageError(
            f"--output {output} does not say which format: let it end in .{CSV} or .{PARQUET}, or "
            "give --format"
        )
    if (chosen := format or named) == PARQUET and output is None:
        raise UsageError("Parquet is not for reading: name a file for it with --output")

    if frame == RUNS and (typed := changed(rows)):
        raise UsageError(f"{typed[0]} leaves no part of a run: leave it out with --frame {RUNS}")

    from specbench.experiment.folders import CONFIG
    from specbench.experiment.tables import TABLE
    from specbench.results import Results

    folders = chosen_runs(runs, TABLE, CONFIG)
    table: pd.DataFrame = getattr(Results(folders, rows.selection()), frame)
    if output is None:
        table.to_csv(sys.stdout, index=False, float_format=digits)
    else:
        _write(table, output, chosen)
        print(output)


def _write(table: pd.DataFrame, path: Path, format: str) -> None:
    if format == CSV:
        write_atomically(path, table.to_csv(index=False, float_format=digits))
    else:
        write_atomically(path, table.to_parquet(index=False))
